// Moves the robot as long as a button or key is pressed. The loop forgets a motion that is not repeated,
// so that a page that hangs or is closed does not keep the robot moving.

const REPEAT_MS = 50;
const KEYS = {
  ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [1, 1], ArrowRight: [1, -1],
  PageUp: [2, 1], PageDown: [2, -1], q: [5, 1], e: [5, -1],
};
const $ = id => document.getElementById(id);

export class Jog {
  // `allowed` says whether the operator has the robot.
  constructor(socket, allowed) {
    this.socket = socket;
    this.allowed = allowed;
    this.pressed = new Map();
    this.timer = null;
    for (const button of document.querySelectorAll("[data-jog]")) this.equip(button);
    $("jog-speed").addEventListener("input", () => {
      $("jog-speed-text").textContent = `${$("jog-speed").value} %`;
    });
    $("gripper").addEventListener("click", () => { this.toggleGripper(); $("gripper").blur(); });
    window.addEventListener("blur", () => this.release());
    document.addEventListener("visibilitychange", () => this.release());
  }

  equip(button) {
    const [axis, sign] = button.dataset.jog.split(" ").map(Number);
    button.addEventListener("pointerdown", event => {
      button.setPointerCapture(event.pointerId);
      this.press(button, axis, sign);
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      button.addEventListener(name, () => this.lift(button));
    }
    button.addEventListener("contextmenu", event => event.preventDefault());
  }

  keys(applies) {
    const jogs = () => applies() && this.allowed();
    const table = { g: { down: () => this.toggleGripper(), applies: jogs } };
    for (const [key, [axis, sign]] of Object.entries(KEYS)) {
      const down = () => this.press(key, axis, sign);
      table[key] = { down, up: () => this.lift(key), applies: jogs };
    }
    return table;
  }

  press(source, axis, sign) {
    if (!this.allowed()) return;
    this.pressed.set(source, [axis, sign]);
    this.show();
    this.send();
    if (this.timer === null) this.timer = setInterval(() => this.send(), REPEAT_MS);
  }

  lift(source) {
    if (!this.pressed.delete(source)) return;
    this.show();
    this.send();
    if (this.pressed.size === 0) this.rest();
  }

  // Nothing is pressed any more, or it no longer moves anything.
  rest() {
    this.pressed.clear();
    clearInterval(this.timer);
    this.timer = null;
    this.show();
  }

  release() {
    for (const source of [...this.pressed.keys()]) this.lift(source);
  }

  motion() {
    const speed = Number($("jog-speed").value) / 100;
    const motion = [0, 0, 0, 0, 0, 0];
    for (const [axis, sign] of this.pressed.values()) motion[axis] += sign * speed;
    return motion.map(value => Math.max(-1, Math.min(1, value)));
  }

  send(gripper = null) {
    if (!this.allowed()) this.rest();
    this.socket.say({ do: "jog", motion: this.motion(), gripper });
  }

  // The label of the button; `live.js` sets it after each command to the gripper.
  toggleGripper() {
    if (!this.allowed() || $("gripper").hidden) return;
    this.send($("gripper").dataset.closed === "true" ? -1 : 1);
  }

  show() {
    for (const button of document.querySelectorAll("[data-jog]")) {
      const [axis, sign] = button.dataset.jog.split(" ").map(Number);
      const on = [...this.pressed.values()].some(([a, s]) => a === axis && s === sign);
      button.classList.toggle("pressed", on);
    }
  }
}
