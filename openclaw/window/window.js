// Shows replies while they are written, and keeps an open page as the run is. Every page works without it.
// It asks this server alone, and never changes a form that is in use: one that has the focus, or a field that was changed.
"use strict";

const main = document.querySelector("main");
const live = document.getElementById("live");
const FIELDS = "input:not([type=hidden]), textarea, select";
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30000;
let talking = false;
let connection = null; // to the events of the page

// ---- Events of a response, as they come

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const line = part.split("\n").find((each) => each.startsWith("data: "));
        if (line) yield line.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

// ---- A page becomes another one, node by node

function changed(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const first = [...field.options].findIndex((each) => each.defaultSelected);
  return field.selectedIndex !== Math.max(first, 0);
}

function inUse(form) {
  return form.contains(document.activeElement) || [...form.querySelectorAll(FIELDS)].some(changed);
}

// What an element is, if it is more than its place; a form without a name is what it would send.
function nameOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  if (node.dataset.name !== undefined) return node.dataset.name;
  if (node.tagName === "FORM") {
    const sent = [...node.querySelectorAll("input[type=hidden], button[name]")];
    return node.getAttribute("action") + sent.map((each) => `&${each.name}=${each.value}`).join("");
  }
  return node.id || node.getAttribute("href") || "";
}

const kindOf = (node) => `${node.nodeName} ${nameOf(node)}`;
const isOwn = (node) => node.nodeType === Node.ELEMENT_NODE && node.dataset.own !== undefined;

// Return as which old node each new one goes on: for as many as possible, in the order of both.
function pairsOf(olds, nexts) {
  const [were, are] = [olds.map(kindOf), nexts.map(kindOf)];
  const pairs = new Map();
  const pair = (one, other) => pairs.set(nexts[other], olds[one]);
  let first = 0;
  let [end, nextEnd] = [olds.length, nexts.length];
  while (first < Math.min(end, nextEnd) && were[first] === are[first]) pair(first, first++);
  while (Math.min(end, nextEnd) > first && were[end - 1] === are[nextEnd - 1]) pair(--end, --nextEnd);
  const most = Array.from({ length: end - first + 1 }, () => new Uint32Array(nextEnd - first + 1));
  for (let one = end - 1; one >= first; one--) {
    const [here, below] = [most[one - first], most[one - first + 1]];
    for (let other = nextEnd - 1; other >= first; other--) {
      const at = other - first;
      here[at] = were[one] === are[other] ? below[at + 1] + 1 : Math.max(below[at], here[at + 1]);
    }
  }
  for (let [one, other] = [first, first]; one < end && other < nextEnd; ) {
    if (were[one] === are[other]) pair(one++, other++);
    else if (most[one - first + 1][other - first] >= most[one - first][other - first + 1]) one++;
    else other++;
  }
  return pairs;
}

// Remove a node, unless a form in it is in use; return whether it is gone.
function remove(node) {
  if (node.nodeType === Node.ELEMENT_NODE) {
    const forms = [...node.querySelectorAll("form"), ...(node.tagName === "FORM" ? [node] : [])];
    if (forms.some(inUse)) return false;
  }
  node.remove();
  return true;
}

// Offer what a form in use lets one choose from as it is now; what was chosen stays.
function renewChoices(form, fresh) {
  for (const select of form.querySelectorAll("select")) {
    const next = [...fresh.querySelectorAll("select")].find((each) => each.name === select.name);
    if (!next || select === document.activeElement) continue;
    const { value } = select;
    become(select, next);
    if ([...select.options].some((each) => each.value === value)) select.value = value;
  }
}

function become(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.tagName === "FORM" && inUse(old)) return renewChoices(old, fresh);
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.tagName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !(name === "open" && old.tagName === "DETAILS")) old.setAttribute(name, value);
  }
  const olds = [...old.childNodes].filter((node) => !isOwn(node));
  const nexts = [...fresh.childNodes];
  const pairs = pairsOf(olds, nexts);
  const staying = new Set(pairs.values());
  const kept = new Set(olds.filter((node) => !staying.has(node) && !remove(node)).map(kindOf));
  let last = null;
  for (const next of nexts) {
    const match = pairs.get(next);
    if (match) become((last = match), next);
    else if (!kept.has(kindOf(next))) {
      const node = document.importNode(next, true);
      old.insertBefore(node, last ? last.nextSibling : old.firstChild);
      last = node;
    }
  }
}

class Gone extends Error {}

async function refresh() {
  const response = await fetch(location.href, { headers: { accept: "text/html" } });
  if (response.status === 401) throw new Gone("You are logged out. Load this page again to log in.");
  if (response.status === 404) throw new Gone("What this page shows is no longer there.");
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const focus = document.activeElement;
  become(main, page.querySelector("main"));
  if (document.activeElement !== focus) (focus.isConnected ? focus : main).focus({ preventScroll: true });
}

// ---- A conversation

function part(kind, who) {
  const element = document.createElement("div");
  element.className = `text ${kind}`;
  const name = document.createElement("b");
  name.textContent = who;
  const words = document.createTextNode("");
  element.append(name, words);
  return { element, words };
}

// Return where the page shows what it has no turn of yet.
function ownPlace(form) {
  const place = document.querySelector("[data-own]") ?? document.createElement("div");
  place.dataset.own = "";
  place.replaceChildren();
  form.before(place);
  return place;
}

async function hear(form, fields, asked, reply) {
  const response = await fetch(form.action, {
    method: "POST",
    body: new URLSearchParams(fields),
    headers: { accept: "text/event-stream" },
  });
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) throw new Error(await problemOf(response));
  for await (const data of events(response)) {
    if (data === "[DONE]") return reply.id;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    reply.id = chunk.id;
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 8;
    for (const { delta } of chunk.choices) {
      if (delta.content) reply.words.data += delta.content;
      else if (delta.reasoning_content && !reply.words.data) reply.element.firstChild.textContent = "reply, thinking";
    }
    if (reply.words.data) reply.element.firstChild.textContent = "reply";
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  }
  throw new Error("The connection ended before the reply did.");
}

const lastTurn = () => [...main.querySelectorAll(":scope > form input[name=response_id]")].at(-1)?.value;

async function talk(form) {
  const fields = new FormData(form);
  const place = ownPlace(form);
  const [asked, reply] = [part("asked", "you"), part("reply", "reply")];
  asked.words.data = fields.get("text");
  reply.element.setAttribute("aria-busy", "true");
  place.append(asked.element, reply.element);
  const before = lastTurn();
  const { text } = form.elements;
  const button = form.querySelector("button");
  text.value = "";
  text.focus({ preventScroll: true });
  form.scrollIntoView({ block: "nearest" });
  button.disabled = talking = true;
  let problem = "";
  try {
    const id = await hear(form, fields, asked, reply);
    const shown = location.search;
    const words = [...fields].filter(([name, value]) => name !== "text" && value);
    history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(words)}`);
    if (location.search !== shown) stayLive(); // it showed no conversation before
    if (!id.startsWith("command-")) place.replaceChildren(); // a command is no turn; it stays until the next words
  } catch (error) {
    problem = error.message;
    if (!reply.words.data) {
      reply.element.remove();
      if (!text.value) text.value = fields.get("text");
    }
  } finally {
    reply.element.removeAttribute("aria-busy");
    button.disabled = talking = false;
  }
  await refresh().catch((error) => (problem ||= error.message));
  if (!problem) return;
  if (lastTurn() !== before) place.replaceChildren(); // the turn is in the conversation
  const words = document.createElement("p");
  words.className = "problem";
  words.setAttribute("role", "alert");
  words.textContent = problem;
  place.append(words);
}

document.addEventListener("submit", (event) => {
  if (event.target.dataset.stream === undefined || event.defaultPrevented) return;
  event.preventDefault();
  if (!talking) talk(event.target);
});

// ---- The page as the run is

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function say(words) {
  if (live.textContent !== words) live.textContent = words;
}

async function follow(signal) {
  const words = new URLSearchParams(location.search);
  words.set("view", main.dataset.view);
  words.set("revision", main.dataset.revision);
  const response = await fetch(`/window/events?${words}`, { signal, headers: { accept: "text/event-stream" } });
  if (response.status === 401) throw new Gone("You are logged out. Load this page again to log in.");
  if (!response.ok) throw new Error(response.status === 429 ? await problemOf(response) : "The server is away.");
  say("live");
  for await (const data of events(response)) {
    if (talking || JSON.parse(data).revision === main.dataset.revision) continue;
    await refresh();
  }
}

// Follow the run while somebody can see the page; a server that is away is asked again, less and less often.
async function stayLive() {
  connection?.abort();
  if (document.hidden || !main.dataset.revision) return;
  const own = (connection = new AbortController());
  let wait = FIRST_WAIT;
  while (!own.signal.aborted) {
    const begun = Date.now();
    let problem = "The server is away.";
    try {
      await follow(own.signal);
    } catch (error) {
      if (own.signal.aborted) return;
      if (error instanceof Gone) return say(error.message);
      if (!(error instanceof TypeError)) problem = error.message;
    }
    if (own.signal.aborted) return;
    if (Date.now() - begun > LONGEST_WAIT) wait = FIRST_WAIT;
    say(`${problem} Next try in ${wait / 1000} s.`);
    await pause(wait);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

document.addEventListener("visibilitychange", stayLive);
stayLive();
