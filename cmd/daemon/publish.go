package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/daemon/publish"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func newPublish(logs *logOptions) *cobra.Command {
	var tokenFile, scratch, credentials, termination string
	var retryFor time.Duration
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Push a checkpoint to the task's repository, then exit",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			capacity.SetGoMemoryLimit(capacity.ForDaemon(capacity.MemoryLimit()))
			log, err := logs.logger("publish")
			if err != nil {
				return err
			}
			text := os.Getenv(daemonapi.PublishEnv)
			if text == "" {
				return errors.New(daemonapi.PublishEnv + " is not set: this program runs in the pods that Clew's manager makes")
			}
			cfg := publish.Config{CredentialsDir: credentials, RetryFor: retryFor, Log: log}
			if cfg.Pod, err = daemonapi.DecodePublishConfig(text); err != nil {
				return err
			}
			caFile, remove, err := volume.CAFile(cfg.Pod.CABundle)
			if err != nil {
				return err
			}
			defer remove()
			cfg.Remote = volume.Remote(cfg.Pod.GitStoreURL, tokenFile, caFile)
			if cfg.ScratchDir, err = os.MkdirTemp(scratch, "clew-publish-*"); err != nil {
				return err
			}
			defer os.RemoveAll(cfg.ScratchDir)
			result := publish.Run(cmd.Context(), cfg)
			message, err := publish.Encode(result)
			if err != nil {
				return err
			}
			if err := os.WriteFile(termination, message, 0o644); err != nil {
				log.Error(err, "the result could not be written", "result", string(message))
			}
			if result.Reason != v1alpha1.ReasonPublished && result.Reason != v1alpha1.ReasonPushAnnounced {
				return exitError(1)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&tokenFile, "gitstore-token-file", filepath.Join(daemonapi.TokenPath, daemonapi.GitStoreTokenFile), "file with the pod's token for the gitstore")
	cmd.Flags().StringVar(&scratch, "scratch-dir", "", "folder for the repository that is pushed; the system's folder for temporary files if empty")
	cmd.Flags().StringVar(&credentials, "credentials-dir", daemonapi.RepositoryPath, "folder with the repository's credentials: username and password, or token, and ca.crt; or ssh-privatekey and known_hosts")
	cmd.Flags().StringVar(&termination, "termination-log", "/dev/termination-log", "file that the result is written to, as JSON")
	cmd.Flags().DurationVar(&retryFor, "retry-for", time.Minute, "how long a failed step that may succeed later is retried")
	return cmd
}
