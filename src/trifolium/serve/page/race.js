// The same prompt in several modes: how many passes, how much time, and whether the texts are equal.

import { answer, bodyOf, warm } from "./api.js";
import { AnswerView, figure, make } from "./render.js";

const ABOUT = { ar: "one token a pass", verified: "the same text, by drafts", diffusion: "by confidence" };

class Lane {
  constructor(mode) {
    this.mode = mode;
    this.view = new AnswerView();
    this.fields = {};
    const list = make("dl", "figures");
    for (const name of ["seconds", "tokens", "passes", "tok/s"]) {
      this.fields[name] = make("dd", "", "–");
      list.append(make("dt", "", name), this.fields[name]);
    }
    this.bar = make("i");
    const title = make("h2", "", mode, make("small", "", ABOUT[mode]));
    this.element = make("section", "lane", title, this.view.element, make("div", "meter", this.bar), list);
    this.element.setAttribute("aria-label", mode);
  }

  async run(settings, key, prompt, signal) {
    const started = performance.now();
    let passes = 0;
    const tick = setInterval(() => this.show("seconds", (performance.now() - started) / 1000), 100);
    try {
      const body = bodyOf(settings, [{ role: "user", content: prompt }], this.mode);
      Object.assign(body.trifolium, { drafts: true, free_rows: settings.free });
      for await (const event of answer(body, key, signal)) {
        if (event.text) {
          this.view.addText(event.text);
          this.show("passes", ++passes);
        }
        if (event.reasoning) this.view.addReasoning(event.reasoning);
        if (event.canvas) this.view.showCanvas(event.canvas);
        if (event.usage) this.usage = event.usage;
      }
    } finally {
      clearInterval(tick);
      this.seconds = (performance.now() - started) / 1000;
      this.view.finish();
    }
    const { passes: counted, seconds } = this.usage.trifolium;
    this.rate = seconds ? this.usage.completion_tokens / seconds : 0;
    this.show("seconds", this.seconds);
    this.show("tokens", this.usage.completion_tokens);
    this.show("passes", counted);
    this.show("tok/s", this.rate);
  }

  show(name, value) {
    this.fields[name].textContent = name === "seconds" ? value.toFixed(1) : figure(value);
  }
}

export class Race {
  constructor(root, settings) {
    this.settings = settings;
    this.root = root;
    this.prompt = root.querySelector("#race-prompt");
    this.startButton = root.querySelector("#race-start");
    this.stopButton = root.querySelector("#race-stop");
    this.lanes = root.querySelector("#lanes");
    this.verdict = root.querySelector("#verdict");
    root.querySelector("#starter").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    this.stopButton.addEventListener("click", () => this.abort());
    this.set();
  }

  get busy() {
    return Boolean(this.running);
  }

  abort() {
    this.running?.abort();
  }

  set() {
    const modes = ["ar", "verified"];
    if (this.root.querySelector("#race-diffusion").checked) modes.push("diffusion");
    const lanes = modes.map((mode) => new Lane(mode));
    this.lanes.replaceChildren(...lanes.map((lane) => lane.element));
    return lanes;
  }

  async start() {
    if (this.busy || !this.prompt.value.trim()) return;
    const lanes = this.set();
    const together = this.root.querySelector("#race-together").checked;
    this.running = new AbortController();
    this.startButton.hidden = true;
    this.stopButton.hidden = false;
    this.verdict.textContent = "";
    const { value, key } = this.settings;
    // One seed for all, or sampled texts could not be compared.
    const free = this.root.querySelector("#race-free").checked;
    const settings = { ...value, free, seed: value.seed ?? Math.floor(Math.random() * 2 ** 31) };
    const go = (lane) => lane.run(settings, key, this.prompt.value, this.running.signal);
    try {
      // The first would read the prompt, and the others find it in the prefix cache.
      await warm(bodyOf(settings, [{ role: "user", content: this.prompt.value }], "ar"), key, this.running.signal);
      if (together) await Promise.all(lanes.map(go));
      else for (const lane of lanes) await go(lane);
      this.judge(lanes);
    } catch (error) {
      this.running.abort();
      this.verdict.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    }
    this.running = null;
    this.startButton.hidden = false;
    this.stopButton.hidden = true;
  }

  judge(lanes) {
    const best = Math.max(...lanes.map((lane) => lane.rate));
    for (const lane of lanes) {
      lane.bar.style.setProperty("--share", best ? (lane.rate / best).toFixed(3) : "0");
      lane.element.classList.toggle("won", lane.rate === best);
    }
    const [ar, verified] = lanes;
    const [slow, fast] = [ar, verified].map((lane) => lane.usage.trifolium.passes);
    const saved = Math.round(100 * (1 - fast / slow));
    const passes = fast === slow
      ? ` Both took ${slow} passes: drafts were not worth their rows here.`
      : ` verified took ${fast} passes where ar took ${slow} (${Math.abs(saved)} % ${fast < slow ? "fewer" : "more"}).`;
    const same = ar.view.text === verified.view.text;
    this.verdict.replaceChildren(
      make("b", "", same ? "The texts are identical." : "The texts differ."),
      passes,
      ` In this one run verified had ${figure(ar.rate ? verified.rate / ar.rate : 0)} times the speed of ar;`,
      " both vary from run to run, times more than passes.",
    );
  }
}
