"""``ftd create``: what is uploaded and what is asked of the daemon."""

import hashlib
from pathlib import Path

import pytest
from fake_api import FakeApi

from ftd.chat.modelfile import parse_modelfile
from ftd.cli.create import request
from ftd.errors import InvalidModelfile

DATA = b"GGUF" + bytes(1000)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()
SUCCESS = [{"status": "parsing GGUF"}, {"status": "writing manifest"}, {"status": "success"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder the command runs in, with a model file in ``weights/``."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "m.gguf").write_bytes(DATA)
    return tmp_path


def test_a_file_is_hashed_uploaded_and_named_by_its_relative_path(cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    (folder / "Modelfile").write_text(
        'FROM weights/m.gguf\nSYSTEM Be kind.\nPARAMETER stop "<|end|>"\nPARAMETER top_k 5\n'
        "MESSAGE user hi\nLICENSE MIT\n"
    )
    result = cli("create", "kind")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        f"gathering model components\nhashing m.gguf\ncopying file {DIGEST}\n"
        "parsing GGUF\nwriting manifest\nsuccess\n"
    )
    assert api.blobs == {DIGEST: DATA}
    assert api.bodies("/api/create") == [
        {
            "model": "kind",
            "files": {"weights/m.gguf": DIGEST},
            "system": "Be kind.",
            "parameters": {"stop": ["<|end|>"], "top_k": 5},
            "messages": [{"role": "user", "content": "hi"}],
            "license": ["MIT"],
        }
    ]


def test_what_the_daemon_has_is_not_sent_again(cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    api.blobs[DIGEST] = b""
    (folder / "My.modelfile").write_text("FROM ./weights/m.gguf\n")
    assert cli("create", "-f", "My.modelfile", "-q", "q8_0", "m").returncode == 0
    assert [method for method, path, _ in api.requests if "blobs" in path] == ["HEAD"]
    assert api.bodies("/api/create")[0]["quantize"] == "q8_0"


def test_paths_are_relative_to_the_modelfile(cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    (folder / "weights" / "Modelfile").write_text("FROM ./m.gguf\n")
    assert cli("create", "m", "-f", "weights/Modelfile").returncode == 0
    assert api.bodies("/api/create")[0]["files"] == {"m.gguf": DIGEST}


def test_a_file_outside_the_modelfiles_folder_goes_by_its_base_name(cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    (folder / "inner").mkdir()
    (folder / "inner" / "Modelfile").write_text("FROM ../weights/m.gguf\n")
    assert cli("create", "m", "-f", "inner/Modelfile").returncode == 0
    assert api.bodies("/api/create")[0]["files"] == {"m.gguf": DIGEST}


def test_a_name_is_a_model(cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    (folder / "Modelfile").write_text("FROM smollm2:latest\nTEMPLATE {{ .Prompt }}\n")
    cli("create", "m")
    assert api.bodies("/api/create") == [
        {"model": "m", "from": "smollm2:latest", "template": "{{ .Prompt }}"}
    ]


@pytest.mark.parametrize(
    ("modelfile", "error"),
    [
        (None, "error: specified Modelfile wasn't found\nhint: use -f FILE\n"),
        (
            "FROM ./none.gguf\n",
            "error: FROM names a file that does not exist: {folder}/none.gguf\nhint: correct the path\n",
        ),
        ("SYSTEM x\n", "error: Modelfile: no FROM line\nhint: start with FROM and a model or a file\n"),
    ],
)
def test_a_bad_modelfile_fails_before_anything_is_sent(
    cli, api: FakeApi, folder: Path, modelfile: str | None, error: str
) -> None:
    if modelfile is not None:
        (folder / "Modelfile").write_text(modelfile)
    result = cli("create", "m")
    assert result.returncode == 1
    assert result.stderr.removeprefix("gathering model components\n") == error.format(folder=folder)
    assert api.requests == []


def test_a_missing_file_after_f_is_named(cli) -> None:
    result = cli("create", "m", "-f", "nowhere")
    assert result.stderr == "error: specified Modelfile wasn't found\nhint: no such file: nowhere\n"


def uploads(folder: Path, modelfile: str) -> list[tuple[str, str]]:
    _, found = request("m", parse_modelfile(modelfile.encode()), folder)
    return [(field, file.name) for field, _, file in found]


def names(folder: Path, modelfile: str) -> dict[str, str]:
    """Return what the files are called in the request, and where they lie below ``folder``."""
    _, found = request("m", parse_modelfile(modelfile.encode()), folder)
    return {name: str(file.relative_to(folder.parent)) for _, name, file in found}


@pytest.mark.parametrize("name", ["My Model", "a:", "../x", "ünï", ""])
def test_a_name_that_is_none_is_told_before_anything_is_read(
    cli, api: FakeApi, folder: Path, name: str
) -> None:
    (folder / "Modelfile").write_text("FROM weights/m.gguf\n")
    result = cli("create", name)
    assert result.returncode == 1
    assert result.stderr.startswith("error: invalid model name\nhint: ")
    assert api.requests == []


@pytest.fixture
def shards(folder: Path) -> list[str]:
    """Three shards of one model in ``big/``."""
    (folder / "big").mkdir()
    names = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for name in names:
        (folder / "big" / name).touch()
    return names


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_shard_brings_the_others(folder: Path, shards: list[str], named: int) -> None:
    """GGUF-1: big models come in shards."""
    assert uploads(folder, f"FROM ./big/{shards[named]}") == [("files", name) for name in shards]
    assert uploads(folder, "FROM ./big") == [("files", name) for name in shards]


def test_a_missing_shard_is_named(folder: Path, shards: list[str]) -> None:
    """GGUF-1: a missing shard gives a clear error."""
    (folder / "big" / shards[1]).unlink()
    for text in (f"FROM ./big/{shards[0]}", "FROM ./big"):
        with pytest.raises(InvalidModelfile, match=f"shards of {shards[0]} are missing: {shards[1]}$"):
            uploads(folder, text)


def test_a_folder_of_several_gguf_models_is_told_from_one_of_shards(folder: Path, shards: list[str]) -> None:
    (folder / "big" / "other.gguf").touch()
    with pytest.raises(InvalidModelfile, match=r"the folder has 2 models: m other\.gguf$"):
        uploads(folder, "FROM ./big")


def test_the_file_that_reads_pictures_is_left_out(folder: Path) -> None:
    (folder / "weights" / "mmproj-model-f16.gguf").touch()
    assert uploads(folder, "FROM ./weights") == [("files", "m.gguf")]
    assert uploads(folder, "FROM ./weights/mmproj-model-f16.gguf") == [("files", "mmproj-model-f16.gguf")]


def test_a_folder_of_safetensors_brings_its_side_files(folder: Path) -> None:
    model = folder / "hf"
    (model / "sub").mkdir(parents=True)
    for name in (
        "model-2.safetensors",
        "model-1.safetensors",
        "config.json",
        "tokenizer.model",
        "x.gguf",
        "README.md",
    ):
        (model / name).touch()
    assert uploads(folder, "FROM ./hf") == [
        ("files", name)
        for name in ("model-1.safetensors", "model-2.safetensors", "config.json", "tokenizer.model")
    ]


def test_a_folder_of_freetoken(folder: Path) -> None:
    (folder / "ft").mkdir()
    for name in ("freetoken-00000.ftw", "freetoken_weight.json", "config.json", "model.safetensors"):
        (folder / "ft" / name).touch()
    assert uploads(folder, "FROM ./ft") == [
        ("files", name) for name in ("freetoken-00000.ftw", "config.json", "freetoken_weight.json")
    ]


def test_a_folder_of_gguf_shards(folder: Path) -> None:
    (folder / "weights" / "n.gguf").touch()
    (folder / "weights" / "config.json").touch()
    assert uploads(folder, "FROM weights") == [("files", "m.gguf"), ("files", "n.gguf")]


def test_an_empty_folder_and_a_link_out_of_it_are_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InvalidModelfile, match="no GGUF or safetensors files in the folder"):
        uploads(folder, "FROM ./empty")
    (folder / "empty" / "m.gguf").symlink_to("/etc/passwd")
    with pytest.raises(InvalidModelfile, match="insecure path"):
        uploads(folder, "FROM ./empty")


def test_an_adapter_must_exist(folder: Path) -> None:
    assert uploads(folder, "FROM x\nADAPTER weights/m.gguf") == [("adapters", "m.gguf")]
    with pytest.raises(InvalidModelfile, match="ADAPTER names a file that does not exist"):
        uploads(folder, "FROM x\nADAPTER lora")


def checkpoint(folder: Path) -> Path:
    """Make an embedding model's folder, in which two files have the same base name."""
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "1_Pooling/config.json"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_files_keep_their_folders_wherever_the_modelfile_lies(folder: Path, tmp_path: Path) -> None:
    checkpoint(folder / "hf")
    (folder / "elsewhere").mkdir()
    inside = {name: f"{folder.name}/hf/{name}" for name in ("config.json", "1_Pooling/config.json")}
    inside["model.safetensors"] = f"{folder.name}/hf/model.safetensors"
    _, found = request("m", parse_modelfile(f"FROM {folder}/hf".encode()), folder / "elsewhere")
    assert {name: str(file.relative_to(folder.parent)) for _, name, file in found} == inside
    assert names(folder, "FROM ./hf") == {f"hf/{name}": path for name, path in inside.items()}


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "m.gguf").write_bytes(DATA)
    (folder / "elsewhere").mkdir()
    modelfile = parse_modelfile(b"FROM ../a/m.gguf\nFROM ../b/m.gguf\n")
    with pytest.raises(InvalidModelfile, match=r"two files have the same name: .*/a/m.gguf and .*/b/m.gguf"):
        request("m", modelfile, folder / "elsewhere")


def test_links_of_hugging_faces_cache_are_followed(folder: Path) -> None:
    """The library keeps ``models--x/snapshots/REVISION/NAME -> ../../blobs/HASH``."""
    snapshot = folder / "models--x" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (folder / "models--x" / "blobs").mkdir()
    for name in ("model.safetensors", "config.json"):
        (folder / "models--x" / "blobs" / f"hash-{name}").write_bytes(b"x")
        (snapshot / name).symlink_to(f"../../blobs/hash-{name}")
    assert uploads(folder, f"FROM {snapshot}") == [("files", "model.safetensors"), ("files", "config.json")]
    (snapshot / "tokenizer.json").symlink_to("/etc/passwd")
    with pytest.raises(InvalidModelfile, match="insecure path"):
        uploads(folder, f"FROM {snapshot}")


def test_a_modelfile_may_come_through_a_pipe(process_cli, api: FakeApi, folder: Path) -> None:
    api.answers["POST /api/create"] = SUCCESS
    result = process_cli("create", "m", "-f", "-", stdin="FROM weights/m.gguf\n")
    assert result.returncode == 0, result.stderr
    assert api.bodies("/api/create") == [{"model": "m", "files": {"weights/m.gguf": DIGEST}}]


@pytest.mark.parametrize("second", ["gemma", "./weights/m.gguf"])
def test_only_one_model_can_be_the_base(folder: Path, second: str) -> None:
    """The last one won in silence; only several files are parts of one model."""
    modelfile = parse_modelfile(f"FROM smol\nFROM {second}\n".encode())
    name = second.removeprefix("./")
    with pytest.raises(InvalidModelfile, match=f"FROM names more than one model: smol and {name}"):
        request("m", modelfile, folder)
