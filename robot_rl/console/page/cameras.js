// Camera images, one figure each.

export function showPicture(place, { camera, picture }) {
  let figure = place.querySelector(`[data-camera="${CSS.escape(camera)}"]`);
  if (!figure) {
    figure = document.createElement("figure");
    figure.dataset.camera = camera;
    const caption = document.createElement("figcaption");
    caption.textContent = camera;
    const wanted = document.createElement("img");
    wanted.className = "wanted";
    wanted.alt = "";  // a camera without a picture of the scene shows nothing
    figure.append(document.createElement("img"), wanted, caption);
    figure.firstChild.alt = `camera ${camera}`;
    place.append(figure);
  }
  const image = figure.querySelector("img");
  const before = image.src;
  image.onload = () => { if (before) URL.revokeObjectURL(before); };
  image.src = URL.createObjectURL(picture);
}

// Lays a scene that a person is to put back half transparent over the pictures; null: none.
export function layOver(place, scene) {
  for (const image of place.querySelectorAll(".wanted")) {
    const address = `wanted/${scene}/${image.parentElement.dataset.camera}.jpg`;
    if (scene === null) image.removeAttribute("src");
    else if (image.getAttribute("src") !== address) image.src = address;
  }
}
