"use strict";
// All text comes in by textContent: a title of "<script>" is a title.

const $ = (id) => document.getElementById(id);
const SHOWN = 5;
const state = { user: "", taste: [], out: [], only: [], ranked: [], labels: [], versions: [], asked: 0 };
const SOURCES = {
  user: "by the trained embedding of this user",
  history: "by these items",
  features: "by the user's features only",
  popularity: "by popularity: this user is unknown",
  labels: "by predicted labels",
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function counted(n, what) { return `${n} ${what}${n === 1 ? "" : "s"}`; }

async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" } };
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// Only what is new: a screen reader tells it at once.
function say(text) { if ($("status").textContent !== text) $("status").textContent = text; }

// While no version is loaded the page says why, and asks again.
async function answering() {
  for (;;) {
    const found = await ask("/api/state").catch(() => ({
      sentence: "The server does not respond. This page retries automatically." }));
    $("wish").inert = !found.ready;
    if (found.ready) return;
    if (found.name) document.title = $("name").textContent = found.name;
    say(found.sentence);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// A text field that finds things while one types: arrows, Enter, Escape.
class Finder {
  constructor(input, list, find, choose) {
    Object.assign(this, { input, list, find, choose, options: [], at: -1, asked: 0 });
    input.addEventListener("input", () => this.search());
    input.addEventListener("focus", () => this.search());
    input.addEventListener("blur", () => this.close());
    input.addEventListener("keydown", (event) => this.key(event));
    // Before the field loses the focus, and the list with it.
    list.addEventListener("pointerdown", (event) => event.preventDefault());
  }

  async search() {
    const asked = ++this.asked;
    try {
      const found = await this.find(this.input.value);
      if (asked === this.asked && document.activeElement === this.input) this.show(found);
    } catch (error) { say(error.message); }
  }

  show(found) {
    this.options = found;
    this.list.replaceChildren(...found.map((one, number) => {
      const option = element("li", { id: `${this.list.id}-${number}`, textContent: one.title ?? one.id });
      option.setAttribute("role", "option");
      if (one.title) option.append(" ", element("span", { className: "id", textContent: one.id }));
      option.addEventListener("click", () => this.pick(number));
      return option;
    }));
    this.list.hidden = !found.length;
    this.input.setAttribute("aria-expanded", String(found.length > 0));
    this.move(-1);
    if (this.input.value) say(found.length ? `${found.length} found` : `Nothing found for “${this.input.value}”`);
  }

  close() {
    this.asked++;
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.move(-1);
  }

  move(to) {
    this.at = to;
    [...this.list.children].forEach((option, number) => {
      option.setAttribute("aria-selected", String(number === to));
      if (number === to) option.scrollIntoView({ block: "nearest" });
    });
    if (to < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", this.list.children[to].id);
  }

  pick(number) {
    const one = this.options[number];
    this.close();
    if (one) this.choose(one);
  }

  key(event) {
    const n = this.list.hidden ? 0 : this.options.length;
    const keys = {
      ArrowDown: () => (n ? this.move((this.at + 1) % n) : this.search()),
      ArrowUp: () => (n ? this.move((Math.max(this.at, 0) + n - 1) % n) : this.search()),
      Enter: () => (n && this.at >= 0 ? this.pick(this.at) : this.enter()),
      Escape: () => (n ? this.close() : this.clear()),
    };
    if (!(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
  }

  clear() {
    this.input.value = "";
    this.input.dispatchEvent(new Event("input"));
  }

  // Enter without a choice: what was typed, or the first that was found.
  enter() {
    const typed = this.input.value.trim();
    const one = this.options.find((option) => option.id === typed);
    if (one) { this.close(); this.choose(one); }
    else if (typed && ["user", "candidate"].includes(this.input.id)) { this.close(); this.choose({ id: typed }); }
    else if (this.options.length) this.pick(0);
  }
}

function version(side) { return Number($(`version-${side}`).value); }

function isComparing() { return !$("beside").hidden && $("version-b").value !== ""; }

function button(text, label, act) {
  const made = element("button", { type: "button", textContent: text });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function row(item, inBoth) {
  const made = element("li", { className: inBoth ? "in-both" : "" },
    element("span", { className: "title", textContent: item.title }),
    element("span", { className: "score", textContent: item.score === undefined ? "" : item.score.toFixed(4) }));
  const features = Object.entries(item.features).filter(([, values]) => values.length)
    .map(([name, values]) => `${name.replaceAll("_", " ")}: ${values.join(", ")}`);
  const labels = Object.entries(item.scores ?? {}).filter(([, score]) => score !== item.score)
    .map(([name, score]) => `${name} ${score.toFixed(4)}`);
  made.append(element("span", { className: "more", textContent: [item.id, ...labels, ...features].join(" · ") }));
  made.append(element("div", { className: "actions" },
    ...(state.labels.length ? [] : [button("Similar", `Similar to ${item.title}`, () => similar(item.id))]),
    button("Like", `Add ${item.title} to the chosen items`, () => like(item)),
    button("Hide", `Hide ${item.title}`, () => hide(item))));
  return made;
}

function fill(list, items, empty, others = new Set()) {
  const rows = items.map((item) => row(item, others.has(item.id)));
  list.replaceChildren(...(rows.length ? rows : [element("li", { className: "empty", textContent: empty })]));
}

// The newest few first; the rest where someone wants it.
function fillHistory(items) {
  fill($("history"), items.slice(0, SHOWN), "No history.");
  if (items.length <= SHOWN) return;
  const more = element("button", { type: "button", textContent: `Show all ${items.length}` });
  more.addEventListener("click", () => {
    fill($("history"), items, "");
    $("history").querySelectorAll("button")[SHOWN * 3].focus();
  });
  $("history").append(element("li", { className: "empty" }, more));
}

function chips(list, items, remove) {
  list.hidden = !items.length;
  list.replaceChildren(...items.map((item) =>
    element("li", {}, button(`${item.title} ×`, `Remove ${item.title}`, () => remove(item)))));
}

function wish(side) {
  return { user: state.user, items: state.taste.map((item) => item.id), version: version(side),
    candidates: state.ranked.map((item) => item.id), exclude: state.out.map((item) => item.id), only: wanted(), context: asked(),
    k: Number($("k").value) };
}

// The context of the query by raw column; an empty field is unknown.
function asked() {
  return Object.fromEntries([...$("context").querySelectorAll("input")]
    .filter((input) => input.value.trim()).map((input) => [input.name, input.value.trim()]));
}

function fillContext(columns) {
  $("context").replaceChildren(...Object.entries(columns).map(([name, type]) => {
    const input = element("input", { type: "text", name, autocomplete: "off", spellcheck: false,
      placeholder: type === "time" ? "2026-11-23T18:00:00Z" : `Any ${type}` });
    input.addEventListener("change", recommend);
    return element("label", {}, name, input);
  }));
  $("context").hidden = !Object.keys(columns).length;
}

// Several names of one filter: any of them; several filters: all must hold.
function wanted() {
  const only = {};
  for (const one of state.only) (only[one.filter] ??= []).push(one.id);
  return only;
}

// The lists are built anew: the focus stays on the button in its place, or goes to the news.
function focusKept() {
  const list = document.activeElement?.closest("#lists ol, .chips");
  const buttons = () => [...list.querySelectorAll("button")];
  const at = list ? buttons().indexOf(document.activeElement) : -1;
  return () => {
    if (at < 0 || document.activeElement !== document.body) return;
    const left = buttons();
    (left[Math.min(at, left.length - 1)] ?? $("status")).focus({ preventScroll: true });
  };
}

async function recommend() {
  const keepFocus = focusKept();
  chips($("candidates"), state.ranked, (item) => { state.ranked = without(state.ranked, item); recommend(); });
  chips($("filters"), state.only, (one) => { state.only = state.only.filter((other) => other !== one); recommend(); });
  chips($("taste"), state.taste, (item) => { state.taste = without(state.taste, item); recommend(); });
  chips($("hidden-items"), state.out, (item) => { state.out = without(state.out, item); recommend(); });
  remember();
  if (!state.user && !state.taste.length) {
    $("lists").hidden = true;
    say("Choose a user or some items.");
    keepFocus();
    return;
  }
  if (!$("k").checkValidity()) {
    say(`The number of items is a whole number from 1 to ${$("k").max}.`);
    return;
  }
  const asked = ++state.asked;
  const started = performance.now();
  try {
    const sides = isComparing() ? ["a", "b"] : ["a"];
    const answers = await Promise.all(sides.map((side) => ask("/api/recommend", wish(side))));
    if (asked === state.asked) show(answers, performance.now() - started);
  } catch (error) { if (asked === state.asked) say(error.message); }
  keepFocus();
}

function show(answers, milliseconds) {
  const [a, b] = answers;
  const ids = answers.map((answer) => new Set(answer.items.map((item) => item.id)));
  $("history-title").textContent = state.taste.length ? "Chosen items" : "History, newest first";
  fillHistory(a.history);
  const done = state.labels.length ? "Ranked" : "Recommended";
  $("title-a").textContent = `${done} by version ${a.version}`;
  fill($("list-a"), a.items, "No items.", ids[1]);
  $("section-b").hidden = !b;
  if (b) {
    $("title-b").textContent = `${done} by version ${b.version}`;
    fill($("list-b"), b.items, "No items.", ids[0]);
  }
  $("lists").hidden = false;
  const isNew = state.user && !a.known && a.source !== "popularity";  // Whose source says that the user is unknown.
  const who = state.user ? `for ${state.user}${isNew ? ", unknown to the model" : ""}` : "for the chosen items";
  const order = a.stage === "ranker" ? ", in the ranker's order" : "";
  const source = (SOURCES[a.source] ? `, ${SOURCES[a.source]}` : "") + order;
  const times = answers.map((one) => `version ${one.version} in ${one.milliseconds.toFixed(1)} ms`).join(", ");
  const shared = b ? ` ${[...ids[0]].filter((id) => ids[1].has(id)).length} in both.` : "";
  const replaced = [["missing", a.missing], ["unknown", a.unknown]].map(([why, columns]) =>
    [why, Object.keys(columns ?? {}).join(", ")]).filter(([, names]) => names)
    .map(([why, names]) => ` Context ${why}: ${names}.`).join("");
  say(`${counted(a.items.length, "item")} ${who}${source}: ${times}; ${milliseconds.toFixed(0)} ms with the network.${shared}${replaced}`);
}

async function similar(id) {
  try {
    const found = await ask(`/api/similar?${new URLSearchParams({ item: id, k: 10, version: version("a") })}`);
    $("similar-title").textContent = `Similar to ${found.item.title}`;
    fill($("similar-list"), found.items, "No items.");
    $("similar").hidden = false;
    $("similar-title").focus();
    say(`${counted(found.items.length, "similar item")} in ${found.milliseconds.toFixed(1)} ms.`);
  } catch (error) { say(error.message); }
}

function without(items, item) { return items.filter((one) => one.id !== item.id); }

function like(item) { state.taste = [item, ...without(state.taste, item)]; recommend(); }

function hide(item) { state.out = [...without(state.out, item), item]; recommend(); }

// The address holds what is shown, so that it can be sent to someone.
function remember() {
  const kept = new URLSearchParams();
  if (state.user) kept.set("user", state.user);
  state.taste.forEach((item) => kept.append("item", item.id));
  state.ranked.forEach((item) => kept.append("rank", item.id));
  state.only.forEach((one) => kept.append(one.filter, one.id));
  Object.entries(asked()).forEach(([name, value]) => kept.append(`context ${name}`, value));
  history.replaceState(null, "", `#${kept}`);
}

async function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  state.user = kept.get("user") ?? "";
  $("user").value = state.user;
  const found = await Promise.all(kept.getAll("item").map((id) =>
    ask(`/api/items?${new URLSearchParams({ words: id, n: 100 })}`).then((answer) =>
      answer.items.find((item) => item.id === id))));
  state.taste = found.filter((item) => item);
  state.ranked = kept.getAll("rank").map((id) => ({ id, title: id }));
  state.only = [...$("feature").options].flatMap(({ value, textContent }) =>
    kept.getAll(value).map((id) => restriction(value, textContent, id)));
  for (const input of $("context").querySelectorAll("input")) input.value = kept.get(`context ${input.name}`) ?? "";
}

function restriction(filter, feature, id) { return { filter, id, title: `${feature}: ${id}` }; }

function fillFilters(filters) {
  $("feature").replaceChildren(...Object.entries(filters).map(([name, feature]) =>
    element("option", { value: name, textContent: feature })));
  $("filter-field").hidden = !$("feature").options.length;
}

function restrict(one) {
  const chosen = $("feature").selectedOptions[0];
  const made = restriction(chosen.value, chosen.textContent, one.id);
  $("filter").value = "";
  state.only = [...state.only.filter((other) => other.title !== made.title), made];
  recommend();
}

function fillVersions(versions) {
  const options = () => versions.map((number) => element("option", { value: number, textContent: number }));
  $("version-a").replaceChildren(...options());
  $("version-b").replaceChildren(element("option", { value: "", textContent: "none" }), ...options());
  $("beside").hidden = versions.length < 2;
}

async function start() {
  new Finder($("user"), $("user-list"),
    async (prefix) => (await ask(`/api/users?${new URLSearchParams({ prefix, version: version("a") })}`)).users,
    (one) => { state.user = one.id; $("user").value = one.id; state.taste = []; recommend(); });
  new Finder($("item"), $("item-list"),
    async (words) => (await ask(`/api/items?${new URLSearchParams({ words, version: version("a") })}`)).items,
    (one) => { $("item").value = ""; like(one); });
  new Finder($("candidate"), $("candidate-list"),
    async (words) => (await ask(`/api/items?${new URLSearchParams({ words, version: version("a") })}`)).items,
    (one) => {
      $("candidate").value = "";
      state.ranked = [...without(state.ranked, one), { title: one.id, ...one }];
      recommend();
    });
  new Finder($("filter"), $("filter-list"),
    async (words) => (await ask(`/api/tokens?${new URLSearchParams({
      filter: $("feature").value, words, version: version("a") })}`)).tokens,
    restrict);
  $("wish").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["k", "version-a", "version-b"]) $(id).addEventListener("change", recommend);
  $("user").addEventListener("input", () => { if (!$("user").value && state.user) { state.user = ""; recommend(); } });
  await answering();
  say("Choose a user or some items.");
  try {
    const about = await ask("/api/about");
    document.title = $("name").textContent = about.name;
    fillVersions(about.versions);
    fillFilters(about.filters);
    state.labels = about.labels;
    $("candidate-field").hidden = !about.labels.length;
    $("score-a").textContent = $("score-b").textContent = about.labels[0] ?? "score";
    fillContext(about.context);
    $("k").max = about.most;
    $("k").value = Math.min(Number($("k").value), about.most);
    await recall();
    if (state.user || state.taste.length) await recommend();
  } catch (error) { say(error.message); }
}

start();
