// The list of stored episodes, and the replay of one.

import { showPicture } from "./cameras.js";
import { draw } from "./charts.js";

const COLORS = ["#0072b2", "#b84a00", "#00805c", "#aa4499", "#5f6b76", "#8a6d00", "#00728a"];
const WHO = { demo: "demonstrator", policy: "policy", intervention: "policy + operator" };
const $ = id => document.getElementById(id);

export class Episodes {
  constructor(socket) {
    this.socket = socket;
    this.place = "store";
    this.oldest = null;
    this.recording = null;
    this.progress = null;
    for (const place of ["store", "demonstrations"]) {
      $(`place-${place}`).addEventListener("click", () => this.choose(place));
    }
    $("refresh").addEventListener("click", () => this.open());
    $("older").addEventListener("click", () => this.ask(this.oldest));
    $("play").addEventListener("click", () => this.control({ playing: !this.progress?.playing }));
    $("seek").addEventListener("input", () =>
      this.control({ playing: false, row: Number($("seek").value) }));
    $("speed").addEventListener("change", () => this.control({ speed: Number($("speed").value) }));
    socket.addEventListener("episodes", ({ detail }) => this.list(detail));
    socket.addEventListener("recording", ({ detail }) => this.load(detail));
    socket.addEventListener("progress", ({ detail }) => { this.progress = detail; this.show(); });
    socket.addEventListener("picture", ({ detail }) => {
      if (detail.view === "replay") showPicture($("cameras-replay"), detail);
    });
  }

  open() { this.ask(null); }

  ask(before) { this.socket.say({ do: "episodes", place: this.place, before }); }

  control(wish) { this.socket.say({ do: "control", ...wish }); }

  choose(place) {
    this.place = place;
    for (const name of ["store", "demonstrations"]) {
      $(`place-${name}`).setAttribute("aria-pressed", String(name === place));
    }
    $("episode-rows").replaceChildren();
    this.open();
  }

  list({ place, before, episodes }) {
    if (place !== this.place) return;
    const rows = episodes.map(episode => this.row(episode));
    if (before === null) $("episode-rows").replaceChildren(...rows);
    else $("episode-rows").append(...rows);
    this.oldest = episodes.length ? episodes.at(-1).number : null;
    $("older").hidden = episodes.length < 100;
    this.mark();
  }

  row(episode) {
    const row = document.createElement("tr");
    row.dataset.number = episode.number;
    row.tabIndex = 0;
    const share = episode.steps ? episode.intervened_steps / episode.steps : 0;
    const [outcome, kind] = !episode.complete ? ["running", "open"]
      : episode.success ? ["success", "yes"] : ["failure", "no"];
    const taken = episode.intervened_steps ? `${Math.round(100 * share)} %` : "–";
    for (const text of [episode.number, outcome, WHO[episode.source], episode.steps, taken]) {
      row.append(Object.assign(document.createElement("td"), { textContent: text }));
    }
    row.children[1].className = `outcome ${kind}`;
    const replay = () =>
      this.socket.say({ do: "replay", place: episode.place, number: episode.number });
    row.addEventListener("click", replay);
    row.addEventListener("keydown", event => { if (event.key === "Enter") replay(); });
    return row;
  }

  offerSpeeds(speeds) {
    $("speed").replaceChildren(...speeds.map(speed => new Option(`${speed} ×`, speed)));
    $("speed").value = 1;
  }

  load(recording) {
    this.recording = recording;
    $("cameras-replay").replaceChildren();
    const { episode, rows, rate, actions } = recording;
    const outcome = episode.success ? "success" : episode.complete ? "failure" : "still running";
    const place = episode.place === "store" ? "Episode" : "Demonstration";
    $("replay-title").textContent =
      `${place} ${episode.number}: ${outcome}, ${episode.steps} steps, ${(episode.steps / rate).toFixed(1)} s`
      + (episode.instruction ? ` – ${episode.instruction}` : "");
    for (const id of ["play", "seek", "speed"]) $(id).disabled = false;
    $("seek").max = rows - 1;
    $("action-legend").replaceChildren(...actions.map((name, column) => {
      const entry = document.createElement("span");
      entry.textContent = `— ${name}`;
      entry.style.color = COLORS[column % COLORS.length];
      return entry;
    }));
    this.mark();
    this.show();
  }

  mark() {
    const shown = this.recording?.episode;
    for (const row of $("episode-rows").children) {
      const same = shown && shown.place === this.place && Number(row.dataset.number) === shown.number;
      row.setAttribute("aria-selected", String(Boolean(same)));
    }
  }

  show() {
    if (!this.recording || !this.progress) return;
    const { row, playing, speed } = this.progress;
    const { rate, rows, action, intervened, actions } = this.recording;
    $("play").textContent = playing ? "Pause" : "Play";
    $("seek").value = row;
    $("speed").value = speed;
    $("seek-text").textContent = `${(row / rate).toFixed(1)} s, ${row} / ${rows - 1}`;
    const series = actions.map((_, column) => ({
      points: action.map((values, index) => [index, values[column]]),
      color: COLORS[column % COLORS.length],
    }));
    draw($("action-chart"), series, {
      low: -1, high: 1, last: Math.max(1, rows - 1), shaded: stretches(intervened), cursor: row,
    });
  }
}

// Where a flag holds: [[from, to], …].
function stretches(flags) {
  const found = [];
  flags.forEach((flag, index) => {
    if (!flag) return;
    if (found.length && found.at(-1)[1] === index) found.at(-1)[1] = index + 1;
    else found.push([index, index + 1]);
  });
  return found;
}
