"""What authors of plug-ins test with; nothing else of resperf needs it.

- `resperf.testing.backends`: `check_backend`, the conformance suite of a target's backend
- `resperf.testing.predictors`: `check_predictor`, that of a method
- `resperf.testing.synthetic`: a simulated device with closed-form times, a target by itself
"""
