"""Draws the report as a bar chart in an image file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from examples.flights.data import Delay

LATE, EARLY, INK, PALE = "#c8553d", "#2f7f79", "#26323a", "#d9dee2"


def save_plot(path: Path, delays: Mapping[str, Delay], names: Mapping[str, str], flights: int) -> None:
    """Draws one bar per carrier, with the largest delay on top."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(delays.items(), key=lambda item: item[1].mean)
    means = [delay.mean for _, delay in ordered]
    figure, axes = plt.subplots(figsize=(9.6, 5.6), dpi=110)
    bars = axes.barh(range(len(ordered)), means, color=[LATE if mean > 0 else EARLY for mean in means], height=0.72)
    axes.bar_label(bars, labels=[f"{mean:+.1f}" for mean in means], padding=4, color=INK, fontsize=9)
    labels = [f"{names.get(carrier, carrier)}  ({delay.flights:,})" for carrier, delay in ordered]
    axes.set_yticks(range(len(ordered)), labels, fontsize=9, color=INK)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_xlabel("mean arrival delay in minutes, by carrier (flights in 2013)", color=INK)
    title = f"{flights:,} flights out of New York in 2013, read by PySpark from the bucket, no broker running"
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=11)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
