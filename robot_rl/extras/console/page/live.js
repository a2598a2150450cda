// The live view: who has the robot, the cameras, the facts of the episode, and the run's curves.

import { draw } from "./charts.js";
import { layOver, showPicture } from "./cameras.js";
import { Crop } from "./crop.js";

const BLUE = "#0072b2", GREEN = "#00805c", ORANGE = "#b84a00";
const SILENT_MS = 1500;
const LOOK_MS = 250;
const ARM_COLUMNS = ["x", "y", "z", "rotation_x", "rotation_y", "rotation_z"];
const $ = id => document.getElementById(id);

const TITLES = {
  resetting: "Resetting", waiting: "Waiting", paused: "Paused", stopped: "Stopped", ended: "Ended",
};
const DETAILS = {
  resetting: "the robot is brought to the next start",
  paused: "no episode begins until you resume",
  stopped: "the robot holds still until you clear the stop",
  ended: "the control loop has ended",
};

export class Live {
  constructor(socket) {
    this.scenes = null;
    this.crop = new Crop($("cameras-live"));
    this.now = null;
    this.curves = null;
    this.status = { connected: false, round_trip_ms: null };
    this.online = false;
    this.heard = 0;
    socket.addEventListener("live", ({ detail }) => {
      this.now = detail;
      this.heard = performance.now();
      this.show();
    });
    socket.addEventListener("status", ({ detail }) => { this.status = detail; this.show(); });
    socket.addEventListener("connection", ({ detail }) => { this.online = detail; this.show(); });
    socket.addEventListener("curves", ({ detail }) => { this.curves = detail; this.draw(); });
    socket.addEventListener("picture", ({ detail }) => {
      if (detail.view === "live") showPicture($("cameras-live"), detail);
    });
    $("wanted").addEventListener("change", () => this.show());
    new ResizeObserver(() => this.draw()).observe($("success-chart"));
    setInterval(() => this.show(), LOOK_MS);
  }

  get known() { return this.online && this.status.connected && this.now !== null; }
  get activity() { return this.known ? this.now.activity : "unknown"; }
  get paused() { return this.activity === "paused"; }
  get operatorActs() { return this.activity === "acting" && this.now.in_control === "operator"; }

  show() {
    const [control, title, detail] = this.state();
    document.body.dataset.control = control;
    document.body.dataset.activity = this.activity;
    $("state-title").textContent = title;
    $("state-detail").textContent = detail;
    $("clear").hidden = this.activity !== "stopped";
    $("take-over-text").textContent = this.operatorActs ? "Hand back to the policy" : "Take over";
    $("pause-text").textContent = this.paused ? "Resume" : "Pause";
    $("jog").disabled = !this.operatorActs;
    for (const id of ["success", "failure", "reset", "pause", "take-over", "start", "discard", "undo"]) {
      $(id).disabled = !this.known;
    }
    const wanted = this.known ? this.now.wanted_scene : null;
    $("wanted-choice").hidden = wanted === null;
    layOver($("cameras-live"), $("wanted").checked ? wanted : null);
    if (this.now !== null) this.showFacts(this.now);
  }

  state() {
    if (!this.online) return ["lost", "Console disconnected", "buttons do nothing; trying again"];
    if (!this.status.connected) return ["none", "No control loop", "waiting for the actor of this run"];
    if (this.now === null) return ["none", "Connected", "waiting for the first observation"];
    const { activity, in_control: who, reason, advice } = this.now;
    if (activity !== "acting") return ["none", TITLES[activity], DETAILS[activity] ?? reason];
    const silent = performance.now() - this.heard;
    const late = silent > SILENT_MS ? `nothing observed for ${(silent / 1000).toFixed(1)} s` : "";
    if (who === "operator") return ["operator", "Operator in control", late || "jog, then hand back"];
    return ["policy", "Policy in control", late || advice];
  }

  showFacts(now) {
    $("episode").textContent = now.episode ? `Episode ${now.episode}` : "No episode yet";
    $("steps").textContent = `step ${now.episode_step} of ${now.time_limit_steps}`;
    $("step-bar").max = Math.max(1, now.time_limit_steps);
    $("step-bar").value = now.episode_step;
    $("instruction").textContent = now.instruction && `“${now.instruction}”`;
    $("run-facts").textContent =
      `run step ${now.run_steps.toLocaleString("en")}, policy ${now.policy_version.toLocaleString("en")}`;
    const force = now.states["state/tcp_wrench"];
    const position = now.states["state/tcp_pose"];
    const facts = {
      "Reward": now.reward.toFixed(2),
      "Return": now.total_reward.toFixed(2),
      "Taken over": `${now.intervened_steps} steps`,
      "Decision": `${(1000 * now.decision_seconds).toFixed(1)} ms`,
      "Tick late by": `${(1000 * now.lateness_seconds).toFixed(1)} ms`,
      "Console link": this.status.round_trip_ms === null ? "–" : `${this.status.round_trip_ms} ms`,
      "Force": force ? `${Math.hypot(...force.slice(0, 3)).toFixed(1)} N` : "–",
      "TCP x, y, z [m]": position ? position.slice(0, 3).map(v => v.toFixed(3)).join("  ") : "–",
    };
    $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
      const entry = document.createElement("div");
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      entry.append(term, text);
      return entry;
    }));
    const columns = now.action_names;
    $("gripper").hidden = !columns.includes("gripper");
    const closed = now.action[columns.indexOf("gripper")] > 0;
    $("gripper").dataset.closed = closed;
    $("gripper-text").textContent = closed ? "Open gripper" : "Close gripper";
    for (const button of document.querySelectorAll("[data-jog]")) {
      button.disabled = !columns.includes(ARM_COLUMNS[button.dataset.jog.split(" ")[0]]);
    }
  }

  draw() {
    if (this.curves === null || this.curves.problem) return;
    const { evaluations, success, interventions, window: episodes } = this.curves;
    const ends = [...evaluations, ...success, ...interventions].map(point => point[0]);
    const frame = { low: 0, high: 1, format: v => `${Math.round(100 * v)} %`, last: Math.max(0, ...ends) };
    const evaluated = {
      points: evaluations.map(([x, rate]) => [x, rate]), color: BLUE, dots: true,
      bars: evaluations.map(([x, , low, high]) => [x, low, high]),
    };
    draw($("success-chart"), [evaluated, { points: success, color: GREEN, dash: "4 3" }], frame);
    draw($("intervention-chart"), [{ points: interventions, color: ORANGE }], frame);
    const percent = points => points.length ? `${Math.round(100 * points.at(-1)[1])} %` : "–";
    $("success-now").textContent = `${percent(evaluations)}, training ${percent(success)}`;
    $("intervention-now").textContent = `${percent(interventions)} of steps`;
    for (const id of ["success-now", "intervention-now"]) $(id).title = `over ${episodes} episodes`;
  }
}
