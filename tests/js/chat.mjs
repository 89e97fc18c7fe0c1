// What the tests of the transport use: the chat of Vercel's `ai`, and our transport for it.
export { Chat } from "@ai-sdk/react";
export { Outlive } from "outlive";
export { OutliveChatTransport } from "outlive/ai";
