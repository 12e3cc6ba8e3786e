"""The port to model vendors. A new wire is a file here and a line in `_WIRES`."""

from importlib import import_module

from chalicelib.config import Settings, SettingsError
from chalicelib.providers.base import (
    AttemptFailed,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderOptions,
    TextDelta,
)
from chalicelib.providers.chain import Chain

__all__ = [
    "AttemptFailed",
    "Chain",
    "Finished",
    "ModelEvent",
    "ModelMessage",
    "ModelRequest",
    "Provider",
    "ProviderOptions",
    "TextDelta",
    "build_chain",
]

# module and class by name, imported when used: a wire's imports are not every function's
_WIRES = {
    "offline": ("chalicelib.providers.offline", "OfflineProvider"),
    "openai": ("chalicelib.providers.openai", "OpenAIProvider"),
}


def build_chain(settings: Settings) -> Provider:
    """The chain that `PAL_PROVIDERS` names; SettingsError for a provider there is none of."""
    chosen = settings.providers or (("offline", "offline"),)
    providers: list[Provider] = []
    for kind, model in chosen:
        if kind not in _WIRES:
            raise SettingsError(
                f"PAL_PROVIDERS must name {' or '.join(sorted(_WIRES))}, not {kind!r}."
            )
        module, name = _WIRES[kind]
        options = ProviderOptions(
            model=model,
            base_url=settings.openai_base_url,
            api_key=settings.openai_api_key,
            timeout=settings.provider_timeout,
        )
        providers.append(getattr(import_module(module), name)(options))
    return Chain(providers)
