"""Configuration: three frozen value objects built in one place.

Precedence: flag > FTD_* variable > OLLAMA_* variable of the same meaning > ~/.ftd/config.toml > default.
``SETTINGS`` drives flags, variables, ``ftd env`` and this module. A bad value is an error, never the default.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import appdirs

from ftd import choices, environment, values
from ftd.address import DEFAULT_PORT
from ftd.errors import InvalidOption

# What the variables that are no settings may say
_SWITCHES = {"FTD_ISA": choices.ISA_LEVELS, "FTD_KERNELS": choices.KERNELS}


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

    @property
    def flag(self) -> str:
        """The flag of ``ftd serve``: ``--keep-alive`` of FTD_KEEP_ALIVE."""
        return "--" + self.key.replace("_", "-")

    @property
    def key(self) -> str:
        """The name in config.toml: ``keep_alive`` of FTD_KEEP_ALIVE."""
        return self.variable.removeprefix("FTD_").lower()

    def read(self, text: str, source: str, parse: Callable[[str], Any] | None = None) -> Any:
        """Return the value of a string; raise InvalidOption that names its source if it is none."""
        try:
            value = (parse or self.parse)(text)
        except InvalidOption as exc:
            hint = exc.hint
            if self.between and hint is None:
                hint = f"use a number from {self.between[0]} to {self.between[1]}"
            raise InvalidOption(f"{source}: {exc.message}", hint) from exc
        if self.between and not self.between[0] <= value <= self.between[1]:
            raise InvalidOption(f"{source} must be between {self.between[0]} and {self.between[1]}: {value}")
        if self.words and value not in self.words:
            raise InvalidOption(f"{source} must be {choices.listed(self.words)}: {value}")
        return value


SETTINGS: tuple[Setting, ...] = (
    Setting(
        ServerConfig,
        "host",
        "FTD_HOST",
        values.host,
        "address the daemon listens on and clients call",
        "OLLAMA_HOST",
        values.word,
    ),
    Setting(
        ServerConfig,
        "origins",
        "FTD_ORIGINS",
        values.origins,
        "web origins allowed to call the API",
        "OLLAMA_ORIGINS",
        values.names,
    ),
    Setting(
        ServerConfig,
        "keep_alive_ns",
        "FTD_KEEP_ALIVE",
        values.keep_alive,
        "how long an idle model stays loaded (5m, 300, -1 for ever)",
        "OLLAMA_KEEP_ALIVE",
    ),
    Setting(
        ServerConfig,
        "load_timeout_ns",
        "FTD_LOAD_TIMEOUT",
        values.keep_alive,
        "longest load without progress before it fails",
        "OLLAMA_LOAD_TIMEOUT",
    ),
    Setting(
        ServerConfig,
        "max_queue",
        "FTD_MAX_QUEUE",
        values.integer,
        "requests that may wait",
        "OLLAMA_MAX_QUEUE",
        between=(1, 10**6),
    ),
    Setting(
        ServerConfig,
        "log_level",
        "FTD_LOG_LEVEL",
        values.word,
        "debug, info, warning or error",
        "OLLAMA_DEBUG",
        values.ollama_debug,
        words=("debug", "info", "warning", "error"),
    ),
    Setting(
        ServerConfig,
        "no_history",
        "FTD_NOHISTORY",
        values.boolean,
        "keep no REPL history",
        "OLLAMA_NOHISTORY",
    ),
    Setting(RegistryConfig, "models_dir", "FTD_MODELS", values.folder, "folder of the model store"),
    Setting(
        RegistryConfig, "no_prune", "FTD_NOPRUNE", values.boolean, "keep unreferenced blobs", "OLLAMA_NOPRUNE"
    ),
    Setting(
        RegistryConfig,
        "allow_private_registries",
        "FTD_PRIVATE_REGISTRIES",
        values.registries,
        "registries on private addresses that may be called (host or host:port)",
    ),
    Setting(
        RegistryConfig,
        "transfer_streams",
        "FTD_TRANSFER_STREAMS",
        values.integer,
        "parallel streams of one transfer",
        "OLLAMA_MAX_TRANSFER_STREAMS",
        between=(1, 64),
    ),
    Setting(
        EngineConfig,
        "context_tokens",
        "FTD_CONTEXT_LENGTH",
        values.integer,
        "context window in tokens (0: chosen by memory)",
        "OLLAMA_CONTEXT_LENGTH",
        between=(0, 2**24),
    ),
    Setting(
        EngineConfig,
        "num_parallel",
        "FTD_NUM_PARALLEL",
        values.integer,
        "sequences decoded together (0: automatic)",
        "OLLAMA_NUM_PARALLEL",
        between=(0, 256),
    ),
    Setting(
        EngineConfig,
        "num_threads",
        "FTD_NUM_THREADS",
        values.integer,
        "CPU threads (0: one a usable core)",
        between=(0, 1024),
    ),
    Setting(
        EngineConfig,
        "precision",
        "FTD_PRECISION",
        values.word,
        "fast (8-bit activations) or f32",
        words=choices.PRECISIONS,
    ),
    Setting(
        EngineConfig,
        "prefill_chunk_tokens",
        "FTD_PREFILL_CHUNK",
        values.integer,
        "tokens of one prefill step (0: by device)",
        between=(0, 16384),
    ),
    Setting(
        EngineConfig,
        "host_memory_bytes",
        "FTD_HOST_MEMORY",
        values.size,
        "host memory budget (0: what is free)",
    ),
    Setting(EngineConfig, "device", "FTD_DEVICE", values.word, "auto, cpu or cuda", words=choices.DEVICES),
    Setting(
        EngineConfig,
        "gpu_memory_bytes",
        "FTD_GPU_MEMORY",
        values.size,
        "device memory budget (0: what is free)",
    ),
    Setting(
        EngineConfig,
        "experts",
        "FTD_EXPERTS",
        values.experts,
        "experts beyond the device's memory: auto, fill, cpu or split=F (F of them are fetched)",
    ),
    Setting(
        EngineConfig,
        "experts_policy",
        "FTD_EXPERTS_POLICY",
        values.word,
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
    """Build the configuration; ``flags`` maps field names to values already typed (None: not given).

    Raises InvalidOption for any value that is none, also of a variable that is no setting.
    """
    environ = environment.variables() if environ is None else environ
    _check_switches(environ)
    file_values = _read_file(environment.state_dir() / "config.toml")
    known = {setting.key for setting in SETTINGS}
    if unknown := sorted(set(file_values) - known):
        raise InvalidOption(
            f"unknown setting in config.toml: {unknown[0]}", f"known settings: {' '.join(sorted(known))}"
        )
    chosen: dict[str, Any] = {"models_dir": Path(appdirs.user_data_dir("ftd")) / "models"}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        found = _find(setting, flags or {}, environ, file_values)
        if found is not None:
            chosen[setting.name], sources[setting.name] = found

    def build(section: Any) -> Any:
        return section(**{name: chosen[name] for name in section._fields if name in chosen})

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
            return setting.read(text, variable, parse), variable
    if setting.key in file_values:
        value = file_values[setting.key]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return setting.read(text, f"config.toml: {setting.key}"), "config.toml"
    return None


def _check_switches(environ: Mapping[str, str]) -> None:
    for variable, words in _SWITCHES.items():
        if environ.get(variable, "") not in ("", *words):
            raise InvalidOption(f"{variable} must be {choices.listed(words)}: {environ[variable]}")
    try:
        values.folder(environ.get("FTD_HOME", ""))
    except InvalidOption as exc:
        raise InvalidOption(f"FTD_HOME: {exc.message}", exc.hint) from exc


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
