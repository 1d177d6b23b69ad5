// Where the server is, from settings and the workspace; nothing here needs the editor.
import * as fs from "node:fs";
import * as path from "node:path";

/** Folders of virtual environments, as people call them. */
const ENVIRONMENTS = [".venv", "venv", "env", ".env"];

/**
 * The program to start. A path stands for itself, relative to the first folder. A bare name is looked
 * for in the folders' virtual environments, so that a project gets the version it pins; else the PATH
 * decides.
 */
export function serverProgram(
  setting: string,
  folders: readonly string[],
  platform: NodeJS.Platform = process.platform,
): string {
  const name = setting.trim() || "ddp-lint";
  if (path.isAbsolute(name)) {
    return name;
  }
  if (name.includes("/") || name.includes("\\")) {
    return folders.length > 0 ? path.join(folders[0], name) : name;
  }
  const [bin, ending] = platform === "win32" ? ["Scripts", ".exe"] : ["bin", ""];
  for (const folder of folders) {
    for (const environment of ENVIRONMENTS) {
      const candidate = path.join(folder, environment, bin, name + ending);
      if (fs.existsSync(candidate)) {
        return candidate;
      }
    }
  }
  return name;
}

/** What of the editor's settings goes to the server. */
export interface ServerSettings {
  config: string;
  isolated: boolean;
  select: string[] | null;
  ignore: string[];
  extendSelect: string[];
  exclude: string[];
  targetTorch: string | null;
}

/** Reads the settings by name; what is not set is left at its default. */
export function serverSettings(get: <T>(name: string, fallback: T) => T): ServerSettings {
  return {
    config: get("config", ""),
    isolated: get("isolated", false),
    select: get<string[] | null>("select", null),
    ignore: get<string[]>("ignore", []),
    extendSelect: get<string[]>("extendSelect", []),
    exclude: get<string[]>("exclude", []),
    targetTorch: get<string | null>("targetTorch", null),
  };
}
