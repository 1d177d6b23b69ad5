-- A whole session in headless Neovim: open, type a fault, see it, mend it, see it vanish; then a
-- change in another file. Run by lint/tests/neovim.rs with DDP_LINT and SCRATCH set.
local server = assert(os.getenv("DDP_LINT"), "DDP_LINT names the program")
local scratch = assert(os.getenv("SCRATCH"), "SCRATCH names a folder")
local here = vim.fn.fnamemodify(debug.getinfo(1, "S").source:sub(2), ":h")
package.path = here .. "/?.lua;" .. package.path

local function fail(why)
  io.stderr:write(why .. "\n")
  vim.cmd("cquit 1")
end

local function codes(buffer)
  local found = {}
  for _, diagnostic in ipairs(vim.diagnostic.get(buffer)) do
    local lsp = (diagnostic.user_data or {}).lsp or {}
    table.insert(found, diagnostic.code or lsp.code or "?")
  end
  return table.concat(found, ",")
end

local function wait_for(buffer, expected, what)
  local met = vim.wait(60000, function()
    return codes(buffer) == expected
  end, 20)
  if not met then
    fail(what .. ": expected `" .. expected .. "`, found `" .. codes(buffer) .. "`")
  end
  print("ok: " .. what)
end

local function write(path, text)
  local file = assert(io.open(scratch .. "/" .. path, "w"))
  file:write(text)
  file:close()
end

local function open(path)
  vim.cmd("edit " .. scratch .. "/" .. path)
  return vim.api.nvim_get_current_buf()
end

-- Asks for code actions at the cursor and applies the first whose title begins so.
local function apply(buffer, title)
  local params = vim.lsp.util.make_range_params()
  params.context = { diagnostics = {} }
  local answers = vim.lsp.buf_request_sync(buffer, "textDocument/codeAction", params, 60000)
  for id, answer in pairs(answers or {}) do
    for _, action in ipairs(answer.result or {}) do
      if action.title:sub(1, #title) == title then
        local client = vim.lsp.get_client_by_id(id)
        vim.lsp.util.apply_workspace_edit(action.edit, client.offset_encoding)
        return
      end
    end
  end
  fail("no action begins with `" .. title .. "`")
end

local ok, why = xpcall(function()
  write("setup.py", "")
  write("a.py", 'if __name__ == "__main__":\n    x = 1\n')
  write("train.py", table.concat({
    "from model import build",
    "",
    'if __name__ == "__main__":',
    "    model = build()",
    "    print(model.classes)",
    "",
  }, "\n"))
  write("model.py", table.concat({
    "import torch",
    "",
    "class Net(torch.nn.Module):",
    "    def __init__(self):",
    "        super().__init__()",
    "        self.classes = 10",
    "",
    "def build():",
    "    return Net()",
    "",
  }, "\n"))
  vim.cmd("filetype on")
  require("ddp_lint").setup({ cmd = { server, "server" } })

  local a = open("a.py")
  vim.wait(60000, function() return #vim.lsp.buf_get_clients(a) > 0 end, 20)
  local fault = '    x = "é🦀"  # ddp-lint: allow(unknown-suppression)'
  vim.api.nvim_buf_set_lines(a, 1, 2, false, { fault })
  wait_for(a, "unused-suppression", "a fault is seen as it is typed")
  local diagnostic = vim.diagnostic.get(a)[1]
  -- Neovim counts bytes: é is two and 🦀 four.
  if diagnostic.col ~= 36 then
    fail("the fault is at byte " .. diagnostic.col)
  end
  vim.api.nvim_win_set_cursor(0, { 2, 40 })
  apply(a, "remove the suppression")
  wait_for(a, "", "the fault vanishes when it is mended")
  if vim.api.nvim_buf_get_lines(a, 1, 2, false)[1] ~= '    x = "é🦀"' then
    fail("the mended line is wrong")
  end

  local train = open("train.py")
  local model = open("model.py")
  vim.api.nvim_buf_set_lines(model, 8, 9, false, { "    return torch.nn.DataParallel(Net())" })
  wait_for(train, "attribute-of-wrapped-model", "an unsaved change in one file is a fault in another")
  vim.cmd("buffer " .. train)
  vim.api.nvim_win_set_cursor(0, { 5, 12 })
  apply(train, "")
  wait_for(train, "", "that fault vanishes when it is mended")
  if vim.api.nvim_buf_get_lines(train, 4, 5, false)[1] ~= "    print(model.module.classes)" then
    fail("the line mended in the other file is wrong")
  end
end, debug.traceback)
if not ok then
  fail(why)
end
vim.cmd("qall!")
