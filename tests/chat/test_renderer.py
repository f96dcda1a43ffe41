"""The worker is a real process; what it may cost the daemon is measured."""

import asyncio
from pathlib import Path

import pytest

from ftd.chat.renderer import Renderer, TemplateRefused
from ftd.errors import InvalidTemplate

pytestmark = pytest.mark.asyncio(loop_scope="module")


def is_alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_renders_in_one_process_of_each_kind(renderer: Renderer) -> None:
    messages = [{"role": "user", "content": "p"}]
    assert await renderer.render("jinja", "a{{ x }}", {"x": "ü\ud83d\0"}) == "aü\ud83d\0"
    assert await renderer.render("go", "{{ .Prompt }}", {"messages": messages}) == "p"
    pids = [renderer.pid(kind) for kind in ("jinja", "go")]
    assert await renderer.render("go", "b{{ .Prompt }}", {"messages": messages}) == "bp"
    assert await renderer.render("jinja", "b", {}) == "b"
    assert [renderer.pid(kind) for kind in ("jinja", "go")] == pids and len(set(pids)) == 2


async def test_refusals_and_faults_can_be_told_apart(renderer: Renderer) -> None:
    with pytest.raises(TemplateRefused, match="no such role"):
        await renderer.render("jinja", "{{ raise_exception('no such role') }}", {})
    with pytest.raises(TemplateRefused, match="UndefinedError"):
        await renderer.render("jinja", "{{ a.b.c }}", {})
    with pytest.raises(InvalidTemplate, match="line 2") as caught:
        await renderer.render("jinja", "\n{% if %}", {})
    assert not isinstance(caught.value, TemplateRefused)


async def test_literals_are_what_a_template_writes(renderer: Renderer) -> None:
    source = "{# no #}a{% if x == 'b' %}{{ '<|c|>' + y }}{% endif %}\n"
    assert {"a", "b", "<|c|>"} <= set(await renderer.literals("jinja", source))
    with pytest.raises(InvalidTemplate, match="does not parse"):
        await renderer.literals("go", "{{ Prompt }}")


async def test_a_slow_template_is_killed_and_the_loop_goes_on() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    async with Renderer(render_limit_s=0.3) as renderer:
        await renderer.render("jinja", "x", {})
        pid = renderer.pid("jinja")
        counter = asyncio.create_task(count())
        loop = "{% for a in range(99999) %}"
        with pytest.raises(InvalidTemplate, match=r"longer than 0\.3 s"):
            await renderer.render("jinja", f"{loop}{loop}{{% endfor %}}{{% endfor %}}", {})
        counter.cancel()
        assert not is_alive(pid)
        assert await renderer.render("jinja", "next", {}) == "next"
    assert turns >= 5  # of about 30 while the template ran


async def test_a_cancelled_render_leaves_no_answer_behind(renderer: Renderer) -> None:
    loop = "{% for a in range(99999) %}"
    endless = f"{loop}{loop}{{% endfor %}}{{% endfor %}}"
    task = asyncio.create_task(renderer.render("jinja", endless, {}))
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await renderer.render("jinja", "mine", {}) == "mine"


async def test_a_dead_worker_is_replaced(renderer: Renderer) -> None:
    await renderer.render("jinja", "x", {})
    process = renderer._workers["jinja"]._process
    assert process is not None
    process.kill()
    await process.wait()
    assert await renderer.render("jinja", "again", {}) == "again"


async def test_close_ends_the_process() -> None:
    renderer = Renderer()
    await renderer.render("jinja", "x", {})
    pid = renderer.pid("jinja")
    await renderer.close()
    await renderer.close()
    assert renderer.pid("jinja") is None and not is_alive(pid)


async def test_concurrent_renders_get_their_own_answers(renderer: Renderer) -> None:
    texts = await asyncio.gather(*(renderer.render("jinja", "{{ x }}", {"x": i}) for i in range(20)))
    assert texts == [str(i) for i in range(20)]


async def test_a_worker_can_be_started_before_it_is_needed() -> None:
    async with Renderer() as renderer:
        await asyncio.gather(*(renderer.literals("jinja", "a{{ x }}") for _ in range(2)))
        pid = renderer.pid("jinja")
        assert await renderer.render("jinja", "a{{ x }}", {"x": 1}) == "a1" and renderer.pid("jinja") == pid


async def test_literals_of_what_parses_and_does_not_compile(renderer: Renderer) -> None:
    source = "a{{ x | nosuchfilter }}"
    assert await renderer.literals("jinja", source) == ["a"]
    with pytest.raises(InvalidTemplate, match="nosuchfilter"):
        await renderer.render("jinja", source, {"x": 1})
