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
