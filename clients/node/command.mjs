// A client that is a command: it is run in a folder of its own, as a user runs it in a project.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { PIXEL } from "./checks.mjs";

const BIN = new URL("node_modules/.bin/", import.meta.url).pathname;

/** Return an empty folder. */
export function makeFolder() {
  return mkdtempSync(join(tmpdir(), "outlive-client-"));
}

/** Return the path of a picture in the folder. */
export function makePicture(folder) {
  const path = join(folder, "picture.png");
  writeFileSync(path, Buffer.from(PIXEL.split(",")[1], "base64"));
  return path;
}

/** Return the first block of a section of the page for users that configures a client, for this model and server. */
export function readConfiguration(title, model, baseURL) {
  const page = readFileSync(new URL("../../docs/how-to/use-your-client.md", import.meta.url), "utf8");
  const block = new RegExp(`^###? ${title}\n[^]*?^\`\`\`\\w+\n([^]*?)^\`\`\`$`, "m").exec(page)[1];
  return block.replace("http://127.0.0.1:7878/v1", baseURL).replace("demo", model);
}

/** Run the command in the folder; return its exit code and all output. */
export function run(name, args, { cwd, env }) {
  return new Promise((resolve, reject) => {
    // As a shell sets it; and the tested Node.js comes before the machine's.
    const shell = { PWD: cwd, PATH: `${BIN}:${process.env.PATH}` };
    const options = { cwd, env: { ...process.env, ...shell, ...env }, stdio: ["ignore", "pipe", "pipe"] };
    const child = spawn(join(BIN, name), args, options);
    let stdout = "";
    let stderr = "";
    child.stdout.on("data", (piece) => (stdout += piece));
    child.stderr.on("data", (piece) => (stderr += piece));
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, stdout, stderr }));
  });
}

/** Parse the lines of JSON in a command's output; others are ignored. */
export function parseLines(output) {
  return output.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}
