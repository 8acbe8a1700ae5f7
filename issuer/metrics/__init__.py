"""Metrics for Prometheus: an observer of an issuer's events, and a reader of what it knows of its tags.

    from issuer.metrics import install

    metrics = install(ids)
    content_type, body = metrics.exposition()

`connect(metrics=True)` installs them too. Nothing is added to the way of a number: what was issued is read from
positions. It needs the extra `metrics`: importing this raises ConfigurationError without it. docs/reference/metrics.md
has them all, and says what several worker processes need.
"""

from __future__ import annotations

from issuer.errors import ConfigurationError

try:
    from issuer.metrics.book import Metrics, forget, install
except ModuleNotFoundError as missing:
    if missing.name != "prometheus_client":
        raise
    raise ConfigurationError(
        'metrics need prometheus_client, which isn\'t installed: pip install ".[metrics]" in a checkout'
    ) from missing

__all__ = ["Metrics", "forget", "install"]
