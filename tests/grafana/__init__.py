"""The dashboard in grafana/ asks for what /metrics serves."""
