package cli

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The error suggests similar commands, or lists all of them.
func TestAnUnknownCommandIsAnError(t *testing.T) {
	for line, want := range map[string]string{
		"rewnd":                 `unknown command "rewnd" for "kubectl clew"; did you mean ` + "`kubectl clew rewind`?",
		"frobnicate":            `unknown command "frobnicate" for "kubectl clew"; the commands are approve, checkpoint, compare, completion, delete, deny, diff, drift, fork,`,
		"rollback x":            `unknown command "rollback" for "kubectl clew"; did you mean ` + "`kubectl clew rewind`?",
		"restore":               "did you mean `kubectl clew rewind`?",
		"completion tcsh":       `unknown command "tcsh" for "kubectl clew completion"; did you mean ` + "`kubectl clew completion bash`",
		"checkpoint describe x": `unknown command "describe" for "kubectl clew checkpoint"; did you mean ` + "`kubectl clew checkpoint show`?",
		"checkpoint lst":        "did you mean `kubectl clew checkpoint list`?",
		"checkpoint get":        "did you mean `kubectl clew checkpoint list` or `kubectl clew checkpoint show`?",
		"checkpoint frobnicate": `unknown command "frobnicate" for "kubectl clew checkpoint"; the commands are branch, create, list, prune, restore, show, verify; see ` + "`kubectl clew checkpoint --help`",
		"snapshot frobnicate":   "the commands are create, list",
		"task delete x":         "did you mean `kubectl clew task delete-history`?",
		"task frobnicate":       "the commands are delete-history, export, history, import, list",
		"help frobnicate":       `unknown command "frobnicate" for "kubectl clew"`,
		"help checkpoint lst":   "did you mean `kubectl clew checkpoint list`?",
		"":                      "",
		"checkpoint":            "",
		"help":                  "",
		"help task":             "",
		"help task list":        "",
		"checkpoint --help":     "",
		"completion":            "",
	} {
		t.Run(line, func(t *testing.T) {
			out := &bytes.Buffer{}
			cmd := New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out}, Options{})
			cmd.SetArgs(strings.Fields(line))
			wantError(t, cmd.Execute(), want)
			if helped := strings.Contains(out.String(), "Usage:"); helped != (want == "") {
				t.Errorf("help printed: %v; want %v:\n%s", helped, want == "", out)
			}
		})
	}
}

// A group does nothing without a subcommand, so its usage has no such line.
func TestTheHelpOfAGroupNamesItsCommandsAlone(t *testing.T) {
	for line, want := range map[string]string{
		"checkpoint --help":      "Usage:\n  kubectl clew checkpoint [command]\n",
		"--help":                 "Usage:\n  kubectl clew [command]\n",
		"completion --help":      "Usage:\n  kubectl clew completion [command]\n",
		"checkpoint list --help": "Usage:\n  kubectl clew checkpoint list [TASK] [flags]\n",
	} {
		t.Run(line, func(t *testing.T) {
			out := &bytes.Buffer{}
			cmd := New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out}, Options{})
			cmd.SetArgs(strings.Fields(line))
			wantError(t, cmd.Execute(), "")
			wantParts(t, "help", out.String(), want)
		})
	}
}

func TestHelpHasExamples(t *testing.T) {
	b := newBench(t)
	for _, args := range [][]string{
		{"search"}, {"task", "list"}, {"task", "export"}, {"task", "import"}, {"task", "delete-history"}, {"task", "history"},
		{"rewind"}, {"undo"}, {"drift"}, {"resume"}, {"snapshot", "create"}, {"snapshot", "list"}, {"fork"}, {"tree"}, {"compare"}, {"pick"}, {"publish"}, {"timeline"}, {"checkpoint", "branch"}, {"checkpoint", "create"}, {"checkpoint", "list"}, {"checkpoint", "show"}, {"checkpoint", "verify"}, {"options"},
	} {
		out, _ := b.must(append(args, "--help")...)
		command := "kubectl clew " + strings.Join(args, " ")
		wantParts(t, "help of "+command, out, "Examples:", command)
	}
}

// The flags that all commands have are listed once, by `options`, as kubectl does.
func TestOptionsListsTheFlagsOfAllCommands(t *testing.T) {
	b := newBench(t)
	out, _ := b.must("options")
	wantParts(t, "the options", out, "--namespace", "--context", "--as-group")
	for _, line := range []string{"undo --help", "checkpoint list --help", "task --help", "--help"} {
		out, _ := b.must(strings.Fields(line)...)
		wantParts(t, line, out, "--help", `Use "kubectl clew options" for the flags`)
		if strings.Contains(out, "--as-group") {
			t.Errorf("%s lists the flags of all commands:\n%s", line, out)
		}
	}
}

func TestAnUnknownFlagIsAnError(t *testing.T) {
	b := newBench(t)
	for line, want := range map[string]string{
		"rewind x --to-mesage 3": "unknown flag: --to-mesage; did you mean --to-message?",
		"tree --namespce x":      "unknown flag: --namespce; did you mean --namespace?",
		"undo x --to 3":          "unknown flag: --to; see `kubectl clew undo --help`",
		"diff x --names-only":    "unknown flag: --names-only; did you mean --name-only?",
		"diff x -1":              "a number with a dash before it is read as a flag",
		"tree --frobnicate":      "unknown flag: --frobnicate; see `kubectl clew tree --help`",
		"tree -x":                "unknown shorthand flag: 'x' in -x; see `kubectl clew tree --help`",
	} {
		_, _, err := b.clew("", strings.Fields(line)...)
		wantError(t, err, want)
	}
}
