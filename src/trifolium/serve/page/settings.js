// What people set: kept in this browser, but for the key, which stays in its tab.

const DEFAULTS = {
  model: "", mode: "verified", temperature: 0, seed: null, max_tokens: 512, block_size: null,
  draft_source: "both", policy: "threshold", threshold: 0.9, drafts: true, free_rows: true, system: "",
};
const STORE = "trifolium.settings";
const KEY = "trifolium.key";

function stored() {
  try {
    const kept = Object.entries(JSON.parse(localStorage.getItem(STORE)) ?? {});
    return { ...DEFAULTS, ...Object.fromEntries(kept.filter(([name]) => name in DEFAULTS)) }; // other versions had others
  } catch {
    return { ...DEFAULTS };
  }
}

/** The dialog, and `value`: what it says. */
export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    this.value = stored();
    this.fill();
    this.form.addEventListener("input", () => this.read());
    dialog.querySelector("#reset-settings").addEventListener("click", () => {
      this.value = { ...DEFAULTS, model: this.value.model };
      this.fill();
      this.keep();
    });
  }

  get key() {
    return sessionStorage.getItem(KEY) || "";
  }

  open() {
    this.dialog.showModal();
  }

  /** The models to choose from. */
  offer(names) {
    const select = this.form.elements.model;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (!names.includes(this.value.model)) this.value.model = names[0] || "";
    select.value = this.value.model;
  }

  fill() {
    for (const [name, value] of Object.entries(this.value)) {
      const field = this.form.elements[name];
      if (field.type === "checkbox") field.checked = value;
      else field.value = value ?? "";
    }
    this.form.elements.key.value = this.key;
  }

  read() {
    for (const name of Object.keys(DEFAULTS)) {
      const field = this.form.elements[name];
      if (field.type === "checkbox") this.value[name] = field.checked;
      else if (field.type !== "number") this.value[name] = field.value;
      else if (field.value === "") this.value[name] = DEFAULTS[name];
      else if (field.validity.valid) this.value[name] = Number(field.value);
    }
    sessionStorage.setItem(KEY, this.form.elements.key.value);
    this.keep();
  }

  keep() {
    localStorage.setItem(STORE, JSON.stringify(this.value));
  }
}

const THEMES = ["", "light", "dark"];

/** The button that goes through automatic, light and dark. */
export function themeButton(button) {
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    const name = `Theme: ${theme || "automatic"}`;
    button.setAttribute("aria-label", name);
    button.title = name;
    button.firstElementChild.textContent = { "": "◐", light: "○", dark: "●" }[theme];
  };
  let theme = localStorage.getItem("trifolium.theme") || "";
  show(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("trifolium.theme", theme);
    show(theme);
  });
}
