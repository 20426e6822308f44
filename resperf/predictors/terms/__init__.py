"""Terms of the physical baseline: what may cost time, one table per class of devices.

``work.py`` has, for each kind of layer, the terms of every class, and a `TermTable` what one class
adds. The targets of the class name its table (`resperf.targets.Target.terms`); a class without one
is fitted with the terms of all tables together. A term has the same meaning in all tables and is
never removed, since stored coefficients name their terms.

Terms relative to the device, whose coefficients several cards share, are in ``card.py``, of which
`resperf.predictors.roofline` makes predictors. They read the same quantities, and the facts of
`resperf.devices`.
"""
