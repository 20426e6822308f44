"""What TensorFlow says of itself: the CUDA that it was built with, and its devices here."""

from __future__ import annotations

import os

# TensorFlow reads this while it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from resperf.backends._facts import FrameworkFacts
from resperf.errors import silent_stderr


def facts() -> FrameworkFacts:
    """List the physical devices."""
    with silent_stderr():
        cards = tf.config.list_physical_devices("GPU")
    build = tf.sysconfig.get_build_info()
    cudnn = build.get("cudnn_version", "")
    return FrameworkFacts(
        version=tf.__version__,
        devices=("cpu", *(f"cuda:{number}" for number, _ in enumerate(cards))),
        cuda=str(build.get("cuda_version", "")),
        notes=(f"built for cuDNN {cudnn}",) if cudnn else (),
    )
