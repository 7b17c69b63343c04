"""What each interval of a trace is: work, collective, parallel axis, step and phase."""

from analyzer.label.job import LabeledJob, label_job

__all__ = ["LabeledJob", "label_job"]
