// A part that a person marks on a live picture, as the lines with which a cell publishes only that. The
// page changes nothing: they are for the person to paste.

const LEAST_PIXELS = 8;  // of the device; less is a click, which marks nothing
const $ = id => document.getElementById(id);

export class Crop {
  constructor(place) {
    this.views = {};  // camera → its node, the part of the device's picture that it shows, and its size
    this.frame = document.createElement("div");
    this.frame.className = "crop";
    place.addEventListener("pointerdown", event => this.begin(event));
    place.addEventListener("pointermove", event => this.mark(event));
    for (const end of ["pointerup", "pointercancel"]) {
      place.addEventListener(end, () => { this.figure = null; });
    }
    place.addEventListener("pointerover", ({ target }) => {
      const figure = target.closest("figure");
      if (figure) figure.dataset.crops = figure.dataset.camera in this.views;
    });
    $("crop-close").addEventListener("click", () => this.close());
  }

  begin(event) {
    const figure = event.target.closest("figure");
    if (!figure || !(figure.dataset.camera in this.views) || event.button !== 0) return;
    event.preventDefault();  // else the browser drags the picture away
    figure.setPointerCapture(event.pointerId);
    this.close();
    this.figure = figure;
    this.from = this.at(event);
  }

  // Where the pointer is: shares of the picture, which fills its figure in one direction only.
  at({ clientX, clientY }) {
    const place = this.figure.getBoundingClientRect();
    // Not the picture's own size: there is none while the next picture loads.
    const [wide, high] = this.views[this.figure.dataset.camera].size;
    const scale = Math.min(place.width / wide, place.height / high);
    this.shown = { width: wide * scale, height: high * scale };
    this.shown.left = (place.width - this.shown.width) / 2;
    this.shown.top = (place.height - this.shown.height) / 2;
    const share = v => Math.min(1, Math.max(0, v));
    return [
      share((clientX - place.left - this.shown.left) / this.shown.width),
      share((clientY - place.top - this.shown.top) / this.shown.height),
    ];
  }

  // The part from where it began to the pointer, in the shape of what the policy sees, so that nothing
  // is stretched, whatever is stretched now.
  mark(event) {
    if (!this.figure) return;
    const { node, part: [left, top, width, height], size: [wide, high] } =
      this.views[this.figure.dataset.camera];
    const [x, y] = this.at(event);
    const [right, down] = [x >= this.from[0], y >= this.from[1]];
    const room = [right ? 1 - this.from[0] : this.from[0], down ? 1 - this.from[1] : this.from[1]];
    const rows = width / height * high / wide;  // share of the height for a share of the width
    const across = Math.min(Math.abs(x - this.from[0]), room[0], room[1] / rows);
    const extent = [across * width, across * rows * height].map(Math.round);
    const corner = [
      left + (this.from[0] - (right ? 0 : across)) * width,
      top + (this.from[1] - (down ? 0 : across * rows)) * height,
    ].map(Math.round);
    if (Math.min(...extent) < LEAST_PIXELS) return this.close();
    // Rounding must not lead out of the picture.
    const crop = [
      Math.min(corner[0], left + width - extent[0]), Math.min(corner[1], top + height - extent[1]), ...extent,
    ];
    this.outline(crop.map((v, i) => (v - [left, top, 0, 0][i]) / [width, height][i % 2]));
    const key = `nodes.${node}.parameters`;
    $("crop-lines").textContent =
      `${key}.crop: [${crop.join(", ")}]   # left, top, width, height in its own pixels\n`
      + `${key}.size: [${wide}, ${high}]   # as in observation.cameras\n`;
    $("crop").hidden = false;
  }

  outline(shares) {
    ["left", "top", "width", "height"].forEach((side, i) => {
      const pixels = shares[i] * [this.shown.width, this.shown.height][i % 2];
      this.frame.style[side] = `${pixels + (i < 2 ? this.shown[side] : 0)}px`;
    });
    this.figure.append(this.frame);
  }

  close() {
    this.frame.remove();
    $("crop").hidden = true;
  }
}
