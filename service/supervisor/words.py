"""Turns settings into command-line arguments, the only way in which a started process gets them."""

from __future__ import annotations

from service.settings.node_settings import NodeSettings


def words_of(settings: NodeSettings) -> list[str]:
    """The options of `tidelog serve` for these settings; defaults are left out."""
    words: list[str] = []
    for name, field in NodeSettings.model_fields.items():
        value, option = getattr(settings, name), f"--{name.replace('_', '-')}"
        if name == "broker":
            words += [word for key, text in settings.broker.items() for word in ("--set", f"{key}={text}")]
        elif name == "supervised":
            words += [] if settings.supervised is None else [option, settings.supervised.model_dump_json()]
        elif value is True:
            words.append(option)
        elif value != field.default:
            words += [option, str(value)]
    return words
