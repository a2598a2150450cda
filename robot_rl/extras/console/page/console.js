// The page: joins the connection, the two views, the buttons and the keys. It keeps no state that
// matters: after a reload the server sends everything again.

import { Episodes } from "./episodes.js";
import { Jog } from "./jog.js";
import { listenForKeys } from "./keys.js";
import { Live } from "./live.js";
import { Socket } from "./socket.js";

const PROBLEM_MS = 8000;
const $ = id => document.getElementById(id);

const socket = new Socket();
const live = new Live(socket);
const jog = new Jog(socket, () => live.operatorActs);
const episodes = new Episodes(socket);

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = false;
  clearTimeout(complain.timer);
  complain.timer = setTimeout(() => { $("problem").hidden = true; }, PROBLEM_MS);
}

function say(event) {
  if (!socket.say({ do: "event", event })) complain(`${event} was NOT sent: no connection`);
}

function show(view) {
  document.body.dataset.view = view;
  for (const name of ["live", "episodes"]) {
    $(name).hidden = name !== view;
    $(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  location.hash = view;
  jog.release();
  // A hidden viewer computes nothing.
  loadScene("live", view === "live");
  loadScene("replay", view === "episodes");
  if (view === "episodes") episodes.open();
  else live.draw();
}

const VIEWPOINT = "initialCameraPosition=1.05,0.6,0.6&initialCameraLookAt=0.35,0,0.22&initialCameraUp=0,0,1";

function loadScene(name, wanted) {
  const frame = $(`scene-${name}`);
  const known = live.scenes;
  if (known === null) return;
  const there = known.includes(name);
  frame.hidden = !there;
  frame.parentElement.querySelector(".missing").hidden = there;
  const address = there && wanted ? `scene/${name}/?${VIEWPOINT}` : "about:blank";
  if (frame.getAttribute("src") !== address) frame.setAttribute("src", address);
}

const actions = {
  stop: () => say("stop"),
  clear: () => say("clear_errors"),
  success: () => say("success"),
  failure: () => say("failure"),
  reset: () => say("reset"),
  start: () => say("start"),
  discard: () => say("discard"),
  undo: () => say("undo"),
  pause: () => say(live.paused ? "resume" : "pause"),
  "take-over": () => say(live.operatorActs ? "hand_back" : "take_over"),
};

for (const [id, act] of Object.entries(actions)) {
  // A stop counts from the moment of pressing; its click is for those who press Enter.
  if (id === "stop") $(id).addEventListener("pointerdown", act);
  $(id).addEventListener("click", event => {
    if (id !== "stop" || event.detail === 0) act();
    $(id).blur();  // so that Enter does not press it again by accident
  });
}
for (const view of ["live", "episodes"]) $(`tab-${view}`).addEventListener("click", () => show(view));

const keys = {
  " ": { down: actions.stop, repeats: true },
  C: { down: actions.clear },
  N: { down: actions.start },
  s: { down: actions.success },
  f: { down: actions.failure },
  r: { down: actions.reset },
  d: { down: actions.discard },
  u: { down: actions.undo },
  p: { down: actions.pause },
  t: { down: actions["take-over"] },
  w: { down: () => $("wanted").click(), applies: () => isLive() && !$("wanted-choice").hidden },
};
const isLive = () => document.body.dataset.view === "live";
listenForKeys(window, { ...keys, ...jog.keys(isLive) });
for (const name of ["live", "replay"]) {
  const frame = $(`scene-${name}`);
  frame.addEventListener("load", () => {
    // One that could not be loaded shows the browser's own error page, which has no document here.
    if (frame.getAttribute("src") === "about:blank" || frame.contentDocument === null) return;
    listenForKeys(frame.contentWindow, { ...keys, ...jog.keys(isLive) });
  });
}

socket.addEventListener("facts", ({ detail }) => {
  $("task").textContent = detail.task;
  $("run").textContent = detail.run;
  document.title = `${detail.task} – robot_rl console`;
  live.scenes = detail.scenes;
  live.crop.views = detail.views;
  episodes.offerSpeeds(detail.speeds);
  show(location.hash === "#episodes" ? "episodes" : "live");
});
socket.addEventListener("problem", ({ detail }) => complain(detail.text));
socket.addEventListener("connection", ({ detail }) => { if (!detail) jog.release(); });
