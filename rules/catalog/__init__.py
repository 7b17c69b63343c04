"""The built-in rules, one module a rule; :mod:`rules.registry` scans this package."""
