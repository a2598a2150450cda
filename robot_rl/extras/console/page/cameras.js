// Camera images, one figure each.

export function showPicture(place, { camera, picture }) {
  let figure = place.querySelector(`[data-camera="${CSS.escape(camera)}"]`);
  if (!figure) {
    figure = document.createElement("figure");
    figure.dataset.camera = camera;
    const caption = document.createElement("figcaption");
    caption.textContent = camera;
    figure.append(document.createElement("img"), caption);
    figure.firstChild.alt = `camera ${camera}`;
    place.append(figure);
  }
  const image = figure.querySelector("img");
  const before = image.src;
  image.onload = () => { if (before) URL.revokeObjectURL(before); };
  image.src = URL.createObjectURL(picture);
}

// Lays the scene that a person is to put back, half transparent, over the pictures; null removes it.
export function layOver(place, scene) {
  for (const figure of place.children) {
    const address = `wanted/${scene}/${figure.dataset.camera}.jpg`;
    const before = figure.querySelector(".wanted");
    if (before?.getAttribute("src") === address) continue;
    before?.remove();
    if (scene === null) continue;
    const image = document.createElement("img");
    image.className = "wanted";
    image.hidden = true;  // and stays so where a camera has no picture of the scene
    image.onload = () => { image.hidden = false; };
    image.src = address;
    figure.firstChild.after(image);
  }
}
