"""Markdown that grows piece by piece is shown as if it had come at once."""

from __future__ import annotations

from playwright.sync_api import BrowserContext

from tests.support.server import OutliveServer

TEXT = r"""# Head *line*

A paragraph with **bold**, *emphasis*, ~~gone~~, `code`, ``a ` tick``, snake_case_names and 2 * 3 * 4.
Second line with \*stars\* and https://example.com/a_b?c=d. Then [a link](https://example.com/x_(y) "title").

1. one
2. two
   - nested
   - more

     with a paragraph
3. three

- [ ] loose

- items

> quoted
> > twice

| a | b \| c |
|---|:-:|
| 1 | **2** |
| 3 |

---

~~~js
const x = `<b>${"**"}</b>`;

# not a heading
~~~

```
never closed
"""

COMPARE = """async (text) => {
    const { Markdown } = await import("/console/markdown.js");
    const whole = new Markdown();
    whole.update(text);
    const differ = [];
    for (const size of [1, 2, 3, 7, 31, 200]) {
        const growing = new Markdown();
        for (let end = size; end < text.length + size; end += size) growing.update(text.slice(0, end));
        if (!growing.node.isEqualNode(whole.node)) differ.push(size);
    }
    const tags = [...whole.node.querySelectorAll("*")].map((node) => node.tagName);
    return [differ, [...new Set(tags)].sort(), whole.node.textContent];
}"""


def test_growing_text_gives_the_same_nodes_as_whole_text(
    server: OutliveServer, context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(server.url)
    differ, tags, shown = page.evaluate(COMPARE, TEXT)
    assert differ == []
    expected = "BLOCKQUOTE BR BUTTON CODE DEL DIV EM H3 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL"
    assert tags == sorted(expected.split())
    assert "snake_case_names and 2 * 3 * 4." in shown
    assert 'const x = `<b>${"**"}</b>`;' in shown


def test_text_made_to_be_slow_is_rendered_at_once(
    server: OutliveServer, context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(server.url)
    slow = [
        "*a " * 8000,
        "[" * 20000,
        "`" * 9999 + "a",
        ">" * 5000,
        "**_" * 6000,
        "- " * 4000,
        "![](" * 8000,
        "|" * 9999 + "\n|-|",
    ]
    took = page.evaluate(
        """async (texts) => {
            const { Markdown } = await import("/console/markdown.js");
            return texts.map((text) => {
                const begun = performance.now();
                new Markdown().update(text);
                return performance.now() - begun;
            });
        }""",
        slow,
    )
    assert max(took) < 1000, took
