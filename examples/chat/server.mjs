// The page's server: it holds the key, and forwards /v1 to Outlive. Start both:
//
//     outlive serve
//     npm install && npm start
//
// Then ask http://127.0.0.1:3000/ for a long story, and reload the page in the middle of it.
import { build } from "esbuild";
import { createServer } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";

const OUTLIVE = process.env.OUTLIVE_URL ?? "http://127.0.0.1:7878";
const KEY = process.env.OUTLIVE_KEY;
const PAGE = `<!doctype html><meta charset="utf-8"><title>Chat</title><link rel="icon" href="data:,">
  <div id="root"></div><script type="module" src="/page.js"></script>`;

const bundle = await build({
  entryPoints: [fileURLToPath(new URL("page.jsx", import.meta.url))],
  bundle: true,
  format: "esm",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  write: false,
});

async function forward(request, response) {
  // An app with users checks here that the conversation is the user's own.
  const abort = new AbortController();
  response.on("close", () => abort.abort());
  const { "content-type": type, "idempotency-key": key, accept } = request.headers;
  const headers = { "content-type": type, "idempotency-key": key, accept, authorization: KEY && `Bearer ${KEY}` };
  const answer = await fetch(OUTLIVE + request.url, {
    method: request.method,
    headers: Object.entries(headers).filter(([, value]) => value !== undefined),
    body: request.method === "POST" ? Readable.toWeb(request) : undefined,
    duplex: "half",
    signal: abort.signal,
  });
  const { "content-encoding": _, ...passed } = Object.fromEntries(answer.headers);
  response.writeHead(answer.status, passed);
  // A stream that breaks must not look ended, so the connection is cut.
  await pipeline(Readable.fromWeb(answer.body), response).catch(() => response.destroy());
}

const server = createServer((request, response) => {
  if (request.url.startsWith("/v1/")) {
    forward(request, response).catch(() => (response.headersSent ? response.destroy() : response.writeHead(502).end()));
  } else if (request.url === "/page.js") {
    response.writeHead(200, { "content-type": "text/javascript; charset=utf-8" }).end(bundle.outputFiles[0].contents);
  } else {
    response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(PAGE);
  }
});
server.listen(process.env.PORT ?? 3000, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
