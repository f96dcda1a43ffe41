"""The text of the metrics, read back by Prometheus's own parser."""

import pytest
from prometheus import read
from prometheus_client.parser import text_string_to_metric_families

from ftd.daemon.metrics import BUCKETS, FAMILIES, Metrics, Sample


def test_nothing_counted_is_nothing_said():
    assert read(Metrics().text()) == {}


def test_counters_add_up_by_labels():
    metrics = Metrics()
    metrics.add("ftd_requests_total", model="a", reason="stop")
    metrics.add("ftd_requests_total", model="a", reason="stop")
    metrics.add("ftd_requests_total", model="b", reason="stop")
    metrics.add("ftd_output_tokens_total", 12, model="a")
    assert read(metrics.text()) == {
        ("ftd_requests_total", (("model", "a"), ("reason", "stop"))): 2,
        ("ftd_requests_total", (("model", "b"), ("reason", "stop"))): 1,
        ("ftd_output_tokens_total", (("model", "a"),)): 12,
    }


def test_histogram_is_cumulative():
    metrics = Metrics()
    for seconds in (0.001, BUCKETS[0], 0.3, 1000.0):
        metrics.observe("ftd_request_seconds", seconds)
    values = read(metrics.text())
    buckets = [values["ftd_request_seconds_bucket", (("le", str(bound)),)] for bound in (*BUCKETS, "+Inf")]
    assert buckets == [2, 2, 2, 2, 2, *[3] * (len(BUCKETS) - 5), 4]
    assert values["ftd_request_seconds_count", ()] == 4
    assert values["ftd_request_seconds_sum", ()] == pytest.approx(1000.311)


def test_labels_are_escaped():
    nasty = 'a"b\\c\nd'
    assert read(Metrics().text([Sample("ftd_model_bytes", 1.5, {"model": nasty})])) == {
        ("ftd_model_bytes", (("model", nasty),)): 1.5
    }


def test_every_family_is_described():
    names = [Sample(name, 1) for name, family in FAMILIES.items() if family.kind != "histogram"]
    families = list(text_string_to_metric_families(Metrics().text(names)))
    assert all(family.documentation.endswith(".") for family in families)
    kinds = {family.name: family.type for family in families}
    assert kinds["ftd_engine_pages"] == "gauge" and kinds["ftd_output_tokens"] == "counter"
