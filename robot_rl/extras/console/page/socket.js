// The connection to the console's server, which is opened again whenever it is lost.

const RETRY_MS = 500;

export class Socket extends EventTarget {
  constructor() {
    super();
    this.open = false;
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}/socket`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.changed(true);
    this.socket.onclose = () => {
      this.changed(false);
      setTimeout(() => this.connect(), RETRY_MS);
    };
    this.socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.receive(JSON.parse(data));
      else this.pictured(new Uint8Array(data));
    };
  }

  // Sends something to the server; returns false without a connection.
  say(request) {
    if (!this.open) return false;
    this.socket.send(JSON.stringify(request));
    return true;
  }

  changed(open) {
    this.open = open;
    this.dispatchEvent(new CustomEvent("connection", { detail: open }));
  }

  receive(message) {
    if (message.type === "mark") {
      this.say({ do: "shown" });
      return;
    }
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
  }

  // A camera image: the length of the head, the head "view/camera", the JPEG.
  pictured(bytes) {
    const head = new TextDecoder().decode(bytes.subarray(1, 1 + bytes[0]));
    const slash = head.indexOf("/");
    const picture = new Blob([bytes.subarray(1 + bytes[0])], { type: "image/jpeg" });
    const detail = { view: head.slice(0, slash), camera: head.slice(slash + 1), picture };
    this.dispatchEvent(new CustomEvent("picture", { detail }));
  }
}
