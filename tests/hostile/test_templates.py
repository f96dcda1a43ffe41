"""Chat templates that attack the daemon: each ends in InvalidTemplate, makes no file; the next render works.

The attacks are those published against programs that rendered model templates without a sandbox
(CVE-2024-34359, CVE-2026-5760), and ways to use up time, memory and output.
"""

from pathlib import Path

import pytest

from ftd.chat.renderer import Renderer
from ftd.chat.templates import ChatTemplate
from ftd.errors import InvalidTemplate

MARK = "/tmp/ftd-hostile-template-was-here"
LOOP = "{% for a in range(99999) %}"
END = "{% endfor %}"

HOSTILE_JINJA = {
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch " + MARK + "') }}",
    "catch warnings": "{% for c in [].__class__.__base__.__subclasses__() %}"
    "{{ c()._module.__builtins__['open']('" + MARK + "','w') }}{% endfor %}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}{{ [].x.y }}",
    "attr by item": "{{ messages['__class__'].__mro__[1] }}{{ x.y }}",
    "format string": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "format map": "{{ '{m.__class__.__base__}'.format_map({'m': messages}) }}",
    "namespace": "{% set ns = namespace(__class__='x') %}{{ ns.__init__.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "import": "{% import 'os' as os %}{{ os.getcwd() }}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "mutate input": "{{ messages.append(1) }}",
    "mutate globals": "{{ dict.update({'x': 1}) }}{{ x.y }}",
    "exception object": "{{ raise_exception.__globals__.json.codecs.open('" + MARK + "', 'w') }}",
    "strftime": "{{ strftime_now.__globals__.datetime }}{{ x.y }}",
    "endless loop": LOOP + LOOP + LOOP + END + END + END,
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for x in [[[]]] recursive %}{{ loop([[x]]) }}{% endfor %}",
    "huge range": "{% for a in range(10**9) %}{% endfor %}",
    "huge string": "{{ 'x' * 10**10 }}",
    "huge power": "{{ 9 ** (9 ** 9) }}",
    "huge output": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "huge format": "{{ '%0999999999d' % 1 }}",
    "huge padding": "{{ 'x' | center(10**10) }}",
    "huge list": "{{ ([0] * 10**9) | length }}",
    "backtracking": "{{ ('a' * 30 + '!') | urlize(rel='x') * 10**9 }}",
    "doubling": "{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "unclosed": "{% if messages %}",
    "unknown filter": "{{ messages | system }}",
    "unknown tag": "{% python %}import os{% endpython %}",
}
HOSTILE_GO = {
    "endless loop": "{{ range 999999999 }}{{ range 999999999 }}{{ end }}{{ end }}",
    "endless recursion": '{{ define "r" }}{{ template "r" . }}{{ end }}{{ template "r" . }}',
    "huge output": "{{ range 999999999 }}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{{ end }}",
    "private field": "{{ .Messages.__class__ }}{{ len 3 }}",
    "call": '{{ call .System "x" }}',
    "unknown function": '{{ exec "id" }}',
    "unclosed": "{{ if .Prompt }}",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def no_file_is_made() -> object:
    """Whatever a template does, the file that it tries to write is not there."""
    Path(MARK).unlink(missing_ok=True)
    yield
    assert not Path(MARK).exists()


@pytest.mark.parametrize("name", HOSTILE_JINJA)
async def test_hostile_jinja_is_refused(name: str, quick: Renderer) -> None:
    template = ChatTemplate(HOSTILE_JINJA[name], quick)
    with pytest.raises(InvalidTemplate):
        await template.render([{"role": "user", "content": "x"}])
    assert await quick.render("jinja", "alive", {}) == "alive"


@pytest.mark.parametrize("name", HOSTILE_GO)
async def test_hostile_go_is_refused(name: str, quick: Renderer) -> None:
    template = ChatTemplate(HOSTILE_GO[name], quick, kind="go")
    with pytest.raises(InvalidTemplate):
        await template.render([{"role": "user", "content": "x"}])
    assert await quick.render("jinja", "alive", {}) == "alive"


def of_process(pid: int | None, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_the_worker_can_open_no_file(quick: Renderer) -> None:
    await quick.render("jinja", "x", {})
    limits = of_process(quick.pid("jinja"), "limits").decode()
    rows = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert rows["Max open files"] == "3"
    assert rows["Max file size"] == "0"
    assert int(rows["Max address space"]) == 1 << 30


async def test_the_worker_inherits_no_secrets(quick: Renderer) -> None:
    await quick.render("jinja", "x", {})
    environment = of_process(quick.pid("jinja"), "environ").split(b"\0")
    names = {entry.partition(b"=")[0] for entry in environment if entry}
    assert names == {b"PYTHONPATH", b"PATH"}
