// The canvas of a graph. It gets ids, labels and captions, and draws them; the library draws text, never markup.

export const COLOURS = ["#2f7fa8", "#c0772a", "#4f8f42", "#8a5fb0", "#b54a5b", "#3d8f86", "#8d7a25", "#6b7780"];
const MOST = 600;

export function colourOf(label, labels) {
  const index = labels.indexOf(label);
  return (index < 0 ? 7 : index) % COLOURS.length;
}

export class Picture {
  static async in(element, onOpen, signal) {
    const { default: cytoscape } = await import("../vendor/cytoscape-3.34.4.min.mjs");
    return new Picture(cytoscape, element, onOpen, signal);
  }

  constructor(cytoscape, element, onOpen, signal) {
    this.nodes = new Map();
    this.relationships = new Map();
    this.cy = cytoscape({ container: element, minZoom: 0.1, maxZoom: 4, boxSelectionEnabled: false, autounselectify: true });
    this.cy.on("tap", "node", (event) => onOpen(this.nodes.get(event.target.id()).id));
    this.restyle();
    document.addEventListener("theme-changed", () => this.restyle(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle(), { signal });
    signal.addEventListener("abort", () => this.cy.destroy());
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    this.cy.style([
      { selector: "node", style: { label: "data(caption)", "background-color": "data(colour)", color: of("--text"), "font-size": 10, "font-family": "system-ui, sans-serif", width: 20, height: 20, "text-valign": "bottom", "text-margin-y": 3, "text-wrap": "ellipsis", "text-max-width": 90, "min-zoomed-font-size": 6 } },
      { selector: "edge", style: { label: "data(type)", width: 1.2, "line-color": of("--quiet"), "target-arrow-color": of("--quiet"), "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier", color: of("--quiet"), "font-size": 8, "text-rotation": "autorotate", "text-background-color": of("--page"), "text-background-opacity": 0.9, "min-zoomed-font-size": 8, opacity: 0.75 } },
      { selector: ".chosen", style: { "border-width": 4, "border-color": of("--text"), width: 28, height: 28 } },
    ]);
  }

  replace(nodes, relationships, labels) {
    this.nodes.clear();
    this.relationships.clear();
    this.cy.elements().remove();
    this.add(nodes, relationships, labels);
    this.arrange();
  }

  add(nodes, relationships, labels, near) {
    const place = near !== undefined && this.cy.getElementById(key(near)).nonempty() ? this.cy.getElementById(key(near)).position() : null;
    let number = 0;
    this.cy.batch(() => {
      for (const node of nodes) {
        if (this.nodes.has(key(node.id)) || this.nodes.size >= MOST) continue;
        this.nodes.set(key(node.id), node);
        number += 1;
        const angle = number * 2.4;
        const radius = 50 + 12 * Math.sqrt(number) * 2;
        this.cy.add({ group: "nodes", data: { id: key(node.id), caption: node.caption ?? String(node.id), colour: COLOURS[colourOf(node.labels[0], labels)] },
          position: place ? { x: place.x + radius * Math.cos(angle), y: place.y + radius * Math.sin(angle) } : { x: radius * Math.cos(angle), y: radius * Math.sin(angle) } });
      }
      for (const each of relationships) {
        const id = `r${each.id}`;
        if (this.relationships.has(id) || !this.nodes.has(key(each.start)) || !this.nodes.has(key(each.end))) continue;
        this.relationships.set(id, each);
        this.cy.add({ group: "edges", data: { id, source: key(each.start), target: key(each.end), type: each.type } });
      }
    });
  }

  arrange() {
    if (this.cy.nodes().nonempty()) this.cy.layout({ name: "cose", animate: false, randomize: false, nodeRepulsion: () => 9000, idealEdgeLength: () => 70, componentSpacing: 60, padding: 20, numIter: 600 }).run();
  }

  fit() {
    this.cy.fit(undefined, 20);
  }

  // Shows a node with its neighbours, so large that their captions are drawn.
  lookAt(id) {
    const around = this.cy.getElementById(key(id)).closedNeighborhood();
    if (around.empty()) return;
    this.cy.fit(around, 50);
    if (this.cy.zoom() > 1.4) this.cy.zoom({ level: 1.4, renderedPosition: { x: this.cy.width() / 2, y: this.cy.height() / 2 } });
  }

  choose(id) {
    this.cy.nodes().removeClass("chosen");
    const node = this.cy.getElementById(key(id));
    node.addClass("chosen");
    if (node.empty()) return;
    const { x1, x2, y1, y2 } = this.cy.extent();
    const { x, y } = node.position();
    if (x < x1 || x > x2 || y < y1 || y > y2) this.cy.center(node);
  }

  content() {
    return { nodes: [...this.nodes.values()], relationships: [...this.relationships.values()] };
  }
}

function key(id) {
  return `n${id}`;
}
