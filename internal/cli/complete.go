package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// completionTime limits how long completion may keep a shell waiting for the cluster.
const completionTime = 3 * time.Second

// names runs a lookup for shell completion. It hides errors, since a shell has no
// place to show them.
func (p *plugin) names(lookUp func(ctx context.Context, s *session) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	s, err := p.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, err := lookUp(ctx, s)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeTask completes the first argument, the name of a task.
func (p *plugin) completeTask(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.names(func(ctx context.Context, s *session) ([]string, error) { return s.taskNames(ctx, prefix) })
}

// taskNames lists the tasks whose names start with a prefix, for completion.
func (s *session) taskNames(ctx context.Context, prefix string) ([]string, error) {
	list := &v1alpha1.TaskList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return nil, err
	}
	var found []string
	for _, task := range list.Items {
		if strings.HasPrefix(task.Name, prefix) {
			found = append(found, cobra.CompletionWithDesc(task.Name, clip.Runes(oneLine(taskState(&task)), 60)))
		}
	}
	return found, nil
}

// completeFlags completes those of kubectl's flags that name an object.
func (p *plugin) completeFlags(root *cobra.Command) {
	complete := func(flag string, lookUp func(ctx context.Context, s *session, prefix string) ([]string, error)) {
		_ = root.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return p.names(func(ctx context.Context, s *session) ([]string, error) { return lookUp(ctx, s, prefix) })
		})
	}
	complete("namespace", func(ctx context.Context, s *session, prefix string) ([]string, error) {
		list := &corev1.NamespaceList{}
		err := s.client.List(ctx, list)
		return startingWith(prefix, list.Items, func(n corev1.Namespace) string { return n.Name }), err
	})
	for flag, names := range map[string]func(clientcmdapi.Config) []string{
		"context": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) },
		"cluster": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) },
		"user":    func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) },
	} {
		complete(flag, func(_ context.Context, _ *session, prefix string) ([]string, error) {
			raw, err := p.flags.ToRawKubeConfigLoader().RawConfig()
			return startingWith(prefix, names(raw), func(name string) string { return name }), err
		})
	}
}

// startingWith returns the names of items that start with a prefix.
func startingWith[T any](prefix string, items []T, name func(T) string) []string {
	var found []string
	for _, item := range items {
		if strings.HasPrefix(name(item), prefix) {
			found = append(found, name(item))
		}
	}
	return found
}
