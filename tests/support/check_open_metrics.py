"""Reads a file of dtrun --metrics-file with the OpenMetrics parser of the Prometheus client and prints every sample as
`name{rank,host} value`. Invalid OpenMetrics is an error."""
import sys

from prometheus_client.openmetrics import parser

with open(sys.argv[1], encoding="utf-8") as stream:
    for family in parser.text_fd_to_metric_families(stream):
        for sample in family.samples:
            print(f"{sample.name}{{{sample.labels['rank']},{sample.labels['host']}}} {sample.value:g}")
