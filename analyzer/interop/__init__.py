"""Handing tables to pandas and HolisticTraceAnalysis (HTA), and checking our figures against HTA's.

Nothing here imports pandas or HTA before a function needs it; a missing package is a
:class:`~analyzer.errors.MissingExtraError` that names the extra to install.

- :func:`analyzer.interop.pandas.to_pandas`: our tables as pandas DataFrames.
- :func:`analyzer.interop.hta.to_hta`: our tables as an HTA ``TraceAnalysis``, without its parser.
- :func:`analyzer.interop.crosscheck.crosscheck`: both tools' figures side by side, with the reason
  of every difference.
"""
