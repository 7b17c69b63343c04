"""Reports: the result document and its renderings.

:mod:`reports.document` turns measurements into one plain document; every renderer reads that
document alone, so a stored result can be rendered again without its trace.
"""
