"""What the server says to who opens its address in a browser.

Guarantees: the page is one file without scripts, links to other hosts, or anything of a conversation. It tells nothing
that `/healthz` does not tell without a key. Pure functions.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response

from openclaw.gateway.client_connection import json_response

TITLE = "OpenClaw-RL"
ABOUT = "A model that learns from its conversations. This address serves it with OpenAI's Chat Completions API."
ROUTES = {
    "POST /v1/chat/completions": "ask the model",
    "GET /v1/models": "its name and context length",
    "POST /v1/feedback": "a thumb or a comment on a reply",
    "GET /v1/turns/ID": "what became of a reply",
    "GET /healthz": "whether the server answers",
    "GET /openapi.json": "all routes",
}
DOCUMENTS = "instructions/README.md of the repository"
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}"
    "pre{overflow-x:auto;padding:1rem;border:1px solid}td{padding-right:1rem;vertical-align:top}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def front_page(headers: Headers, base_url: str, model: str, *, needs_key: bool) -> Response:
    """Return the answer to ``GET /``: a page for a browser, otherwise JSON.

    Args:
        headers: of the request.
        base_url: under which the client reached the server.
        model: its name.
        needs_key: whether requests need one.
    """
    url = f"{base_url.rstrip('/')}/v1"
    if "text/html" not in headers.get("accept", ""):
        told = {"name": TITLE, "about": ABOUT, "status": "ok", "model": model, "base_url": url}
        response = json_response({**told, "needs_key": needs_key, "routes": ROUTES, "documents": DOCUMENTS})
        response.headers.update(HEADERS)
        return response
    return HTMLResponse(_page(url, model, needs_key), headers=HEADERS)


def _page(url: str, model: str, needs_key: bool) -> str:
    key = ' -H "Authorization: Bearer $OPENCLAW_API_KEY"' if needs_key else ""
    curl = (
        f"curl {url}/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        """  -d '{"messages": [{"role": "user", "content": "Hello"}]}'"""
    )
    rows = "".join(
        f"<tr><td><code>{escape(route)}</code></td><td>{escape(what)}</td></tr>" for route, what in ROUTES.items()
    )
    asks = "Requests need a key." if needs_key else "Requests need no key."
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<style>{STYLE}</style>
<h1>{TITLE}</h1>
<p>{ABOUT}</p>
<p>It serves now. The model is <b>{escape(model)}</b>. {asks}</p>
<p>Talk to it in a terminal:</p>
<pre>openclaw-rl chat --base-url {escape(url)}</pre>
<p>Or point a client at <code>{escape(url)}</code>:</p>
<pre>{escape(curl)}</pre>
<table>{rows}</table>
<p>See what it learned with <code>openclaw-rl report RUN</code>. The documents begin at {DOCUMENTS}.</p>
</html>
"""
