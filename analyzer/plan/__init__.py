"""The strategy advisor: which mesh trains a model on a machine fastest, and why the others lose.

Arithmetic over :mod:`analyzer.roofline` alone: no trace, no tables. ``request`` reads what the user
states, ``machine`` holds the hardware, ``layout`` lists the meshes, ``footprint`` and ``estimate``
price one of them, ``search`` ranks them, ``conditions`` and ``advice`` put the numbers into the
rules of theory, ``curves`` holds what the page draws, ``document`` collects everything.
"""
