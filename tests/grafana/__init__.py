"""The dashboard in grafana/ asks only for metrics that /metrics serves."""
