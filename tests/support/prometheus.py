"""Reads Prometheus's text format with its own parser."""

from prometheus_client.parser import text_string_to_metric_families


def read(text):
    """{(name, labels): value} of every sample."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
