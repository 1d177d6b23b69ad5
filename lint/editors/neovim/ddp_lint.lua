-- ddp-lint in Neovim, without plugins: put this file into `lua/` of your configuration and call
-- `require("ddp_lint").setup()`. Works from Neovim 0.7 on.
local M = {}

-- What marks the root of a project, as the linter sees it.
local markers = { "ddp-lint.toml", "pyproject.toml", "setup.py", "Cargo.toml", ".git" }

local function root_of(path)
  local folder = vim.fn.fnamemodify(path, ":p:h")
  while true do
    for _, marker in ipairs(markers) do
      local candidate = folder .. "/" .. marker
      if vim.fn.filereadable(candidate) == 1 or vim.fn.isdirectory(candidate) == 1 then
        return folder
      end
    end
    local parent = vim.fn.fnamemodify(folder, ":h")
    if parent == folder then
      return vim.fn.fnamemodify(path, ":p:h")
    end
    folder = parent
  end
end

-- options.cmd: the server's command line; options.settings: as in `ddp-lint` of the settings.
function M.setup(options)
  options = options or {}
  local clients = {}
  local function attach(buffer)
    local path = vim.api.nvim_buf_get_name(buffer)
    if path == "" then
      return
    end
    local root = root_of(path)
    local id = clients[root]
    if not (id and vim.lsp.get_client_by_id(id)) then
      id = vim.lsp.start_client({
        name = "ddp-lint",
        cmd = options.cmd or { "ddp-lint", "server" },
        root_dir = root,
        workspace_folders = { { uri = vim.uri_from_fname(root), name = root } },
        init_options = options.settings,
        settings = { ["ddp-lint"] = options.settings or vim.empty_dict() },
      })
      clients[root] = id
    end
    if id then
      vim.lsp.buf_attach_client(buffer, id)
    end
  end
  vim.api.nvim_create_autocmd("FileType", {
    pattern = { "python", "rust" },
    callback = function(event)
      attach(event.buf)
    end,
  })
end

return M
