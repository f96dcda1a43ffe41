"""Configuration against the precedence rule."""

import re
from pathlib import Path

import pytest

from ftd import config, environment, units
from ftd.cli.main import main
from ftd.errors import InvalidOption
from ftd.kernels import cpu


def test_precedence_is_flag_then_own_variable_then_ollamas_then_file_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('host = "1.1.1.1"\nmax_queue = 9\n')
    environ = {"OLLAMA_HOST": "2.2.2.2", "FTD_HOST": "3.3.3.3", "OLLAMA_KEEP_ALIVE": "-1"}

    by_flag = config.load({"host": "4.4.4.4"}, environ)
    by_variable = config.load({}, environ)
    by_ollama = config.load({}, {"OLLAMA_HOST": "2.2.2.2"})
    by_file = config.load({}, {})

    assert [c.server.host for c in (by_flag, by_variable, by_ollama, by_file)] == [
        "4.4.4.4", "3.3.3.3", "2.2.2.2", "1.1.1.1",
    ]  # fmt: skip
    assert by_variable.server.keep_alive_ns == units.FOREVER_NS
    assert by_file.server.max_queue == 9
    assert by_file.sources["max_queue"] == "config.toml"


# variable -> wrong values, each with what the error says of what is allowed
WRONG: dict[str, list[tuple[str, str]]] = {
    "FTD_HOST": [("ftp://x", "127.0.0.1:11434"), ("x:99999", "127.0.0.1:11434"), ("a b", "127.0.0.1:11434")],
    "FTD_ORIGINS": [("example.com", "https://example.com"), ("https://a b", "https://example.com")],
    "FTD_KEEP_ALIVE": [("soon", "5m"), ("²", "5m"), ("5 minutes", "5m")],
    "FTD_LOAD_TIMEOUT": [("soon", "5m"), ("--5", "5m")],
    "FTD_MAX_QUEUE": [("many", "from 1 to 1000000"), ("1e3", "from 1"), ("0", "between 1 and 1000000")],
    "FTD_LOG_LEVEL": [("loud", "debug, info, warning or error")],
    "FTD_NOHISTORY": [("maybe", "1 or 0"), ("2", "1 or 0")],
    "FTD_MODELS": [("/dev/null", "name a folder"), ("/dev/null/x", "name a folder"), ("~nobody-x/m", "user")],
    "FTD_NOPRUNE": [("maybe", "1 or 0")],
    "FTD_PRIVATE_REGISTRIES": [
        ("http://10.0.0.1", "10.0.0.1:5000"),
        ("host/models", "10.0.0.1:5000"),
        ("a b", "10.0.0.1:5000"),
    ],
    "FTD_TRANSFER_STREAMS": [("0", "between 1 and 64"), ("65", "between 1 and 64"), ("x", "from 1 to 64")],
    "FTD_CONTEXT_LENGTH": [("-1", "between 0 and 16777216"), ("8k", "from 0 to 16777216")],
    "FTD_NUM_PARALLEL": [("257", "between 0 and 256"), ("two", "from 0 to 256")],
    "FTD_NUM_THREADS": [("1025", "between 0 and 1024"), ("all", "from 0 to 1024")],
    "FTD_PRECISION": [("double", "fast or f32"), ("F32", "fast or f32")],
    "FTD_PREFILL_CHUNK": [("16385", "between 0 and 16384"), ("big", "from 0 to 16384")],
    "FTD_HOST_MEMORY": [("big", "24G"), ("inf", "24G"), ("-5G", "24G"), ("nan", "24G"), ("1e99T", "24G")],
    "FTD_DEVICE": [("gpu", "auto, cpu or cuda"), ("cuda:1", "auto, cpu or cuda")],
    "FTD_GPU_MEMORY": [("inf", "24G"), ("-1", "24G"), ("24 GB or so", "24G")],
    "FTD_EXPERTS": [("split=1.5", "auto, fill, cpu or split=F (0 to 1)"), ("gpu", "auto, fill")],
    "FTD_EXPERTS_POLICY": [("fifo", "ftd, lru or paper")],
    "FTD_HOME": [("/dev/null", "name a folder"), ("~nobody-x", "user")],
    "FTD_ISA": [("sse2", "scalar, avx2, avx512 or amx"), ("AVX2", "scalar, avx2, avx512 or amx")],
    "FTD_KERNELS": [("numpy", "reference, cython or triton")],
}
# Of tests and benchmarks of a checkout, and a misspelt one that a sentence is about
OF_NO_SETTING = ("FTD_TEST_", "FTD_PEER", "FTD_KEEPALIVE")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [(variable, *case) for variable, cases in WRONG.items() for case in cases],
)
def test_a_wrong_value_is_told_with_its_variable_and_what_is_allowed(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        config.load({}, {variable: value})
    said = f"{caught.value.message}\n{caught.value.hint}"
    assert said.startswith(variable)
    assert allowed in said
    assert value in said or repr(value) in said or value.rpartition(":")[2] in said


def test_every_variable_that_the_documentation_lists_is_checked() -> None:
    root = Path(__file__).parents[1]
    texts = [path.read_text("utf-8") for path in root.glob("*.md")]
    documented = set(re.findall(r"FTD_[A-Z_]*[A-Z]", "".join(texts)))
    known = {*(setting.variable for setting in config.SETTINGS), *environment.SWITCHES}
    assert {name for name in documented if not name.startswith(OF_NO_SETTING)} <= known
    assert set(WRONG) == known


@pytest.mark.parametrize("verb", ["serve", "list", "env", "ps"])
@pytest.mark.parametrize("variable", ["FTD_ISA", "FTD_KERNELS", "FTD_HOME", "FTD_GPU_MEMORY"])
def test_every_command_tells_it_before_it_does_anything(
    verb: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, allowed = WRONG[variable][0]
    monkeypatch.setenv(variable, value)
    assert main([verb]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"error: {variable}") and allowed in said.err


def test_an_instruction_set_beyond_the_machine_is_told_by_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "detected_isa", lambda: "avx2")
    monkeypatch.setenv("FTD_ISA", "amx")
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == (
        "error: FTD_ISA asks for amx, this machine has avx2\nhint: unset FTD_ISA\n"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FTD_ORIGINS", "*, https://*.example.com,app://."),
        ("FTD_PRIVATE_REGISTRIES", "localhost, 10.0.0.1:5000,[::1]:80,fe80::1,my-host.lan"),
        ("FTD_MODELS", "~/not/there/yet"),
        ("FTD_HOME", ""),
        ("FTD_ISA", ""),
        ("FTD_ISA", "scalar"),
        ("FTD_GPU_MEMORY", "0"),
        ("OLLAMA_ORIGINS", "example.com"),
        ("FTD_KEEP_ALIVE", "-1"),
    ],
)
def test_what_is_allowed_is_taken(variable: str, value: str) -> None:
    config.load({}, {variable: value})


def test_what_ollamas_variable_says_is_told_of_it() -> None:
    with pytest.raises(InvalidOption, match=r"^OLLAMA_MAX_QUEUE must be between 1 and 1000000: 0"):
        config.load({}, {"OLLAMA_MAX_QUEUE": "0"})


def test_the_file_names_a_setting_as_its_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('keep_alive = "1h"\nnohistory = true\ncontext_length = 4096\n')
    loaded = config.load({}, {})
    assert loaded.server.keep_alive_ns == 3600 * 10**9
    assert loaded.server.no_history is True
    assert loaded.engine.context_tokens == 4096
    assert len({setting.key for setting in config.SETTINGS}) == len(config.SETTINGS)


def test_what_the_file_says_is_told_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('device = "gpu"\n')
    with pytest.raises(InvalidOption, match=r"^config\.toml: device must be auto, cpu or cuda: gpu"):
        config.load({}, {})


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text("hots = 1\n")
    with pytest.raises(InvalidOption, match=r"unknown setting in config\.toml: hots"):
        config.load({}, {})


def test_every_setting_names_a_field_of_its_section_once() -> None:
    rows = [(setting.section, setting.name) for setting in config.SETTINGS]
    known = {
        (section, name)
        for section in (config.ServerConfig, config.RegistryConfig, config.EngineConfig)
        for name in section._fields
    }
    assert len(rows) == len(set(rows))
    assert set(rows) == known


def test_sizes_are_binary() -> None:
    assert config.load({}, {"FTD_EXPERTS": "split=0.25"}).engine.experts == "split=0.25"
    assert config.load({}, {"FTD_GPU_MEMORY": "24GiB"}).engine.gpu_memory_bytes == 24 << 30


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "x:80a", "http://x:y/z", "[::1]:-1", "x:\u0661"])
def test_a_port_that_is_none_is_refused(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default port was used in silence: another daemon's."""
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    with pytest.raises(InvalidOption, match="FTD_HOST: not a port"):
        config.load(environ={"FTD_HOST": host})
    assert config.load(environ={"OLLAMA_HOST": host}).server.host == host


@pytest.mark.parametrize(
    "host",
    ["x", "x:0", "x:65535", ":80", "[::1]:80", "::1", "[::1]", "https://x/a:b", "http://x:80/"],
)
def test_other_hosts_are_taken(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    assert config.load(environ={"FTD_HOST": host}).server.host == host
