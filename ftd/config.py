"""Configuration: three frozen value objects built in one place.

Precedence: flag > FTD_* variable > OLLAMA_* variable of the same meaning > ~/.ftd/config.toml > default.
``SETTINGS`` drives flags, variables, ``ftd env`` and this module. A bad value is an error, never the default.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import appdirs

from ftd import choices, environment, units
from ftd.address import DEFAULT_PORT
from ftd.errors import InvalidOption

_EXPERTS = re.compile(r"auto|fill|cpu|split=(0(\.\d+)?|1(\.0+)?)", re.ASCII)


class ServerConfig(NamedTuple):
    """The daemon: where it listens, who may call it, how long models stay."""

    host: str = f"127.0.0.1:{DEFAULT_PORT}"
    origins: tuple[str, ...] = ()
    keep_alive_ns: int = 5 * 60 * 10**9
    load_timeout_ns: int = 5 * 60 * 10**9
    max_queue: int = 512
    log_level: str = "info"
    no_history: bool = False


class RegistryConfig(NamedTuple):
    """The store and the registries it talks to."""

    models_dir: Path
    no_prune: bool = False
    allow_private_registries: tuple[str, ...] = ()
    transfer_streams: int = 8


class EngineConfig(NamedTuple):
    """The engine: 0 and "auto" become numbers in the plan, never here."""

    context_tokens: int = 0
    num_parallel: int = 0
    num_threads: int = 0
    precision: str = "fast"
    prefill_chunk_tokens: int = 0
    host_memory_bytes: int = 0
    device: str = "auto"
    gpu_memory_bytes: int = 0
    experts: str = "auto"
    experts_policy: str = "ftd"


def _text(value: str) -> str:
    return value.strip().strip("\"'")


def _integer(value: str) -> int:
    try:
        return int(_text(value))
    except ValueError:
        raise InvalidOption(f"not an integer: {value!r}") from None


def _boolean(value: str) -> bool:
    text = _text(value).lower()
    if text in ("1", "true", "yes", "on", "t"):
        return True
    if text in ("0", "false", "no", "off", "f", ""):
        return False
    raise InvalidOption(f"not a boolean: {value!r}")


def _host(text: str) -> str:
    """Refuse a port that is none; Ollama's variable means the default port then."""
    host = _text(text)
    authority = host.rpartition("://")[2].partition("/")[0]
    _, bracket, rest = authority.rpartition("]")
    port = rest.partition(":")[2] if bracket or rest.count(":") == 1 else ""
    if port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidOption(f"not a port: {port!r}", "write it as 127.0.0.1:11434")
    return host


def _names(value: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)


def _keep_alive(value: str) -> int:
    text = _text(value)
    number = text.removeprefix("-")
    ns = units.parse_keep_alive(float(text) if number.replace(".", "", 1).isdigit() else text)
    return 0 if ns is None else ns


def _size(value: str) -> int:
    text = _text(value).upper().removesuffix("B").removesuffix("I")
    scale = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(text[-1:], 1)
    try:
        return int(float(text if scale == 1 else text[:-1]) * scale)
    except ValueError:
        raise InvalidOption(f"not a size: {value!r}", "write it as 24G or 512M") from None


def _path(value: str) -> Path:
    return Path(_text(value)).expanduser()


def _experts(value: str) -> str:
    text = _text(value)
    if not _EXPERTS.fullmatch(text):
        raise InvalidOption(f"not auto, fill, cpu or split=F (0 to 1): {text!r}")
    return text


def _ollama_debug(value: str) -> str:
    return "debug" if _text(value) not in ("", "0", "false") else "info"


class Setting(NamedTuple):
    """One row of the table: a field of a config, its variables, how a string becomes a value, its help.

    A number must lie ``between`` two, a word must be one of ``words``.
    """

    section: type[ServerConfig] | type[RegistryConfig] | type[EngineConfig]
    name: str
    variable: str
    parse: Callable[[str], Any]
    help: str
    ollama: str | None = None
    parse_ollama: Callable[[str], Any] | None = None
    between: tuple[int, int] | None = None
    words: tuple[str, ...] = ()

    def check(self, value: Any) -> None:
        """Raise InvalidOption if a value is none that is allowed."""
        if self.between and not self.between[0] <= value <= self.between[1]:
            raise InvalidOption(
                f"{self.variable} must be between {self.between[0]} and {self.between[1]}: {value}"
            )
        if self.words and value not in self.words:
            raise InvalidOption(f"{self.variable} must be {choices.listed(self.words)}: {value}")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        ServerConfig,
        "host",
        "FTD_HOST",
        _host,
        "address the daemon listens on and clients call",
        "OLLAMA_HOST",
        _text,
    ),
    Setting(
        ServerConfig,
        "origins",
        "FTD_ORIGINS",
        _names,
        "web origins allowed to call the API",
        "OLLAMA_ORIGINS",
    ),
    Setting(
        ServerConfig,
        "keep_alive_ns",
        "FTD_KEEP_ALIVE",
        _keep_alive,
        "how long an idle model stays loaded (5m, 300, -1 for ever)",
        "OLLAMA_KEEP_ALIVE",
    ),
    Setting(
        ServerConfig,
        "load_timeout_ns",
        "FTD_LOAD_TIMEOUT",
        _keep_alive,
        "longest load without progress before it fails",
        "OLLAMA_LOAD_TIMEOUT",
    ),
    Setting(
        ServerConfig,
        "max_queue",
        "FTD_MAX_QUEUE",
        _integer,
        "requests that may wait",
        "OLLAMA_MAX_QUEUE",
        between=(1, 10**6),
    ),
    Setting(
        ServerConfig,
        "log_level",
        "FTD_LOG_LEVEL",
        _text,
        "debug, info, warning or error",
        "OLLAMA_DEBUG",
        _ollama_debug,
        words=("debug", "info", "warning", "error"),
    ),
    Setting(
        ServerConfig, "no_history", "FTD_NOHISTORY", _boolean, "keep no REPL history", "OLLAMA_NOHISTORY"
    ),
    Setting(RegistryConfig, "models_dir", "FTD_MODELS", _path, "folder of the model store"),
    Setting(RegistryConfig, "no_prune", "FTD_NOPRUNE", _boolean, "keep unreferenced blobs", "OLLAMA_NOPRUNE"),
    Setting(
        RegistryConfig,
        "allow_private_registries",
        "FTD_PRIVATE_REGISTRIES",
        _names,
        "registries on private addresses that may be called (host or host:port)",
    ),
    Setting(
        RegistryConfig,
        "transfer_streams",
        "FTD_TRANSFER_STREAMS",
        _integer,
        "parallel streams of one transfer",
        "OLLAMA_MAX_TRANSFER_STREAMS",
        between=(1, 64),
    ),
    Setting(
        EngineConfig,
        "context_tokens",
        "FTD_CONTEXT_LENGTH",
        _integer,
        "context window in tokens (0: chosen by memory)",
        "OLLAMA_CONTEXT_LENGTH",
        between=(0, 2**24),
    ),
    Setting(
        EngineConfig,
        "num_parallel",
        "FTD_NUM_PARALLEL",
        _integer,
        "sequences decoded together (0: automatic)",
        "OLLAMA_NUM_PARALLEL",
        between=(0, 256),
    ),
    Setting(
        EngineConfig,
        "num_threads",
        "FTD_NUM_THREADS",
        _integer,
        "CPU threads (0: one a usable core)",
        between=(0, 1024),
    ),
    Setting(
        EngineConfig,
        "precision",
        "FTD_PRECISION",
        _text,
        "fast (8-bit activations) or f32",
        words=choices.PRECISIONS,
    ),
    Setting(
        EngineConfig,
        "prefill_chunk_tokens",
        "FTD_PREFILL_CHUNK",
        _integer,
        "tokens of one prefill step (0: by device)",
        between=(0, 16384),
    ),
    Setting(
        EngineConfig, "host_memory_bytes", "FTD_HOST_MEMORY", _size, "host memory budget (0: what is free)"
    ),
    Setting(EngineConfig, "device", "FTD_DEVICE", _text, "auto, cpu or cuda", words=choices.DEVICES),
    Setting(
        EngineConfig, "gpu_memory_bytes", "FTD_GPU_MEMORY", _size, "device memory budget (0: what is free)"
    ),
    Setting(
        EngineConfig,
        "experts",
        "FTD_EXPERTS",
        _experts,
        "experts beyond the device's memory: auto, fill, cpu or split=F (F of them are fetched)",
    ),
    Setting(
        EngineConfig,
        "experts_policy",
        "FTD_EXPERTS_POLICY",
        _text,
        f"which experts stay on the device: {choices.listed(choices.EXPERTS_POLICIES)}",
        words=choices.EXPERTS_POLICIES,
    ),
)


class Config(NamedTuple):
    """All of the configuration, and for each setting where its value came from."""

    server: ServerConfig
    registry: RegistryConfig
    engine: EngineConfig
    sources: Mapping[str, str]


def load(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Build the configuration; ``flags`` maps field names to values already typed (None: not given)."""
    environ = environment.variables() if environ is None else environ
    file_values = _read_file(environment.state_dir() / "config.toml")
    known = {setting.name for setting in SETTINGS}
    if unknown := sorted(set(file_values) - known):
        raise InvalidOption(
            f"unknown setting in config.toml: {unknown[0]}", f"known settings: {' '.join(sorted(known))}"
        )
    values: dict[str, Any] = {"models_dir": Path(appdirs.user_data_dir("ftd")) / "models"}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        found = _find(setting, flags or {}, environ, file_values)
        if found is not None:
            setting.check(found[0])
            values[setting.name], sources[setting.name] = found

    def build(section: Any) -> Any:
        return section(**{name: values[name] for name in section._fields if name in values})

    return Config(
        server=build(ServerConfig),
        registry=build(RegistryConfig),
        engine=build(EngineConfig),
        sources=sources,
    )


def _find(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], file_values: Mapping[str, Any]
) -> tuple[Any, str] | None:
    if flags.get(setting.name) is not None:
        return flags[setting.name], "flag"
    rows = [(setting.variable, setting.parse)]
    if setting.ollama:
        rows.append((setting.ollama, setting.parse_ollama or setting.parse))
    for variable, parse in rows:
        text = environ.get(variable, "")
        if text.strip():
            return _parse(parse, text, variable), variable
    if setting.name in file_values:
        value = file_values[setting.name]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return _parse(setting.parse, text, f"config.toml: {setting.name}"), "config.toml"
    return None


def _parse(parse: Callable[[str], Any], text: str, source: str) -> Any:
    try:
        return parse(text)
    except InvalidOption as exc:
        raise InvalidOption(f"{source}: {exc.message}", exc.hint) from exc


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as exc:
        raise InvalidOption(f"{path}: {exc}") from exc
    import tomllib  # takes a third of what a command imports, and few people have the file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidOption(f"{path}: {exc}") from exc
