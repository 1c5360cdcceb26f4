// Command clew-daemon is what runs of Clew in a task's pod: prepare (init
// container), run (sidecar), agent (shim in the user's image), hook (what an
// agent runs before its tools) and ready (the sidecar's startup probe).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// version is set by the linker.
var version = "dev"

// exitError ends the program with a code, without a word more.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := newCommand().ExecuteContext(ctx)
	stop()
	var code exitError
	if errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "clew-daemon:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	logging := &logOptions{}
	cmd := &cobra.Command{
		Use:           "clew-daemon",
		Short:         "The part of Clew that runs in a task's pod",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().StringVar(&logging.level, "log-level", "info", "what is logged: debug, info or error")
	cmd.PersistentFlags().StringVar(&logging.format, "log-format", "json", "how it is logged: json or text")
	cmd.AddCommand(newPrepare(logging), newRun(logging), newAgent(logging), newHook(), newReady())
	return cmd
}

// logOptions say what is logged and how; always to standard error.
type logOptions struct{ level, format string }

func (o logOptions) logger(name string) (logr.Logger, error) {
	cfg := zap.NewProductionConfig()
	cfg.OutputPaths, cfg.ErrorOutputPaths = []string{"stderr"}, []string{"stderr"}
	cfg.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	cfg.DisableStacktrace, cfg.DisableCaller, cfg.Sampling = true, true, nil
	switch o.format {
	case "json":
	case "text":
		cfg.Encoding = "console"
	default:
		return logr.Logger{}, fmt.Errorf("--log-format is %q and must be json or text", o.format)
	}
	if err := cfg.Level.UnmarshalText([]byte(o.level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level is %q and must be debug, info or error", o.level)
	}
	log, err := cfg.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("start logging: %w", err)
	}
	return zapr.NewLogger(log).WithName(name), nil
}
