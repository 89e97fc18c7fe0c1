// Types of ai.js: a transport for useChat of Vercel's `ai`, 7 or newer.

import type { ChatTransport, UIMessage } from "ai";
import type { Outlive, OutliveOptions } from "./outlive.js";

export interface OutliveChatTransportOptions extends OutliveOptions {
  /** A client to use, instead of one made of the other options. */
  outlive?: Outlive;
  model?: string;
  /** Further fields of every request: `instructions`, `tools`, ... */
  body?: Record<string, any>;
  /**
   * Return the id of a chat's conversation. `make`, which is null where the chat need not exist, creates one. By default the
   * chat's own id if it begins with `conv_`, else one that the browser's localStorage keeps.
   */
  conversation?: (chatId: string, make: (() => Promise<string>) | null) => Promise<string | null> | string | null;
  /** Let useChat's `stop`, which it also calls when its component is removed, cancel the answer. True. */
  cancelOnAbort?: boolean;
}

export declare class OutliveChatTransport<M extends UIMessage = UIMessage> implements ChatTransport<M> {
  constructor(options?: OutliveChatTransportOptions);
  readonly resumeStreamIsReplay: boolean;
  sendMessages: ChatTransport<M>["sendMessages"];
  reconnectToStream: ChatTransport<M>["reconnectToStream"];
  /** Cancel the answer that is running in a chat, from any page. */
  stop(chatId: string): Promise<boolean>;
  /** The messages of a chat, for a page that is opened again. */
  messages(chatId: string): Promise<M[]>;
}
