package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
)

// maxVariants is how many tasks the API lets a Fork create.
const maxVariants = 16

// checkForkFlags rejects flags that exclude each other.
func checkForkFlags(cmd *cobra.Command) error {
	return cmp.Or(notBoth(cmd, "at", "from", "they are the same flag"),
		notBoth(cmd, "variant", "prompt", "each variant has a prompt of its own, as its last key: name=NAME,prompt=PROMPT"))
}

// checkName rejects a --name that cannot be that of the Fork and, without --variant, of the new task.
func (o *fork) checkName(source string) error {
	var err error
	switch {
	case len(o.variants) == 0 && o.name == source:
		return errors.New("--name is that of the task to fork; give the new task another name")
	case len(o.variants) == 0:
		err = checkTaskName(o.name)
	case len(o.name) > maxForkName:
		err = fmt.Errorf("the name of a fork has at most %d characters, since its tasks carry it in a label; this has %d", maxForkName, len(o.name))
	default:
		err = checkObjectName(o.name)
	}
	if err != nil {
		return fmt.Errorf("--name is %q: %w", o.name, err)
	}
	return nil
}

// parseVariants parses --variant; without one it returns the variant of --name and --prompt.
func (o *fork) parseVariants(source string) ([]v1alpha1.ForkVariant, error) {
	if len(o.variants) == 0 {
		v := v1alpha1.ForkVariant{Name: o.name}
		if o.prompt != "" {
			v.Prompt = &o.prompt
		}
		return []v1alpha1.ForkVariant{v}, nil
	}
	if len(o.variants) > maxVariants {
		return nil, fmt.Errorf("there are %d --variant flags; a fork creates at most %d tasks: use several forks", len(o.variants), maxVariants)
	}
	named := map[string]bool{}
	var variants []v1alpha1.ForkVariant
	for _, text := range o.variants {
		v, err := parseVariant(text)
		if err != nil {
			return nil, fmt.Errorf("--variant %q: %w", text, err)
		}
		if v.Name == source {
			return nil, fmt.Errorf("--variant %q: %s is the name of the task to fork; give the new task another name", text, source)
		}
		if named[v.Name] {
			return nil, fmt.Errorf("two --variant flags have name=%s; each task needs a name of its own", v.Name)
		}
		named[v.Name] = true
		variants = append(variants, v)
	}
	return variants, nil
}

// parseVariant parses KEY=VALUE,…,prompt=PROMPT. The prompt is everything to the end.
func parseVariant(text string) (v v1alpha1.ForkVariant, err error) {
	seen := map[string]bool{}
	for rest := text; rest != ""; {
		key, value, ok := strings.Cut(rest, "=")
		key = strings.TrimSpace(key)
		if !ok {
			return v, fmt.Errorf("%q is not KEY=VALUE; separate them by commas, and let prompt come last", rest)
		}
		if seen[key] && key != "env" {
			return v, fmt.Errorf("%s is set twice", key)
		}
		seen[key] = true
		if key == "prompt" {
			v.Prompt = &value
			break
		}
		value, rest, _ = strings.Cut(value, ",")
		if err := setVariant(&v, key, strings.TrimSpace(value)); err != nil {
			return v, err
		}
	}
	if v.Name == "" {
		return v, errors.New("a variant needs a name: name=NAME")
	}
	return v, nil
}

// setVariant sets one field of a variant.
func setVariant(v *v1alpha1.ForkVariant, key, value string) error {
	if value == "" {
		return fmt.Errorf("%s has no value", key)
	}
	switch key {
	case "name":
		v.Name = value
		return checkTaskName(value)
	case "branch":
		v.Branch = value
		if err := refname.CheckBranch(value); err != nil {
			return fmt.Errorf("branch is %q: %w; use a branch name such as try/oauth", value, err)
		}
	case "agent":
		agentOf(v).Type = v1alpha1.AgentType(value)
		if !slices.Contains(agentTypes(), value) {
			return fmt.Errorf("agent is %q; it must be one of %s", value, strings.Join(agentTypes(), ", "))
		}
	case "model":
		agentOf(v).Model = value
	case "image":
		templateOf(v).Image = value
	case "env":
		name, value, ok := strings.Cut(value, "=")
		if !ok || name == "" {
			return errors.New("env is NAME=VALUE")
		}
		t := templateOf(v)
		t.Env = append(t.Env, corev1.EnvVar{Name: name, Value: value})
	case "cpu", "memory", "size":
		return setQuantity(v, key, value)
	case "storage-class":
		workspaceOf(v).StorageClassName = &value
	default:
		return fmt.Errorf("there is no key %q: use name, agent, model, branch, image, env, cpu, memory, size, storage-class and prompt", key)
	}
	return nil
}

// agentTypes returns the types of agents that the API accepts.
func agentTypes() []string {
	return []string{string(v1alpha1.AgentExec), string(v1alpha1.AgentClaudeCode), string(v1alpha1.AgentCodex),
		string(v1alpha1.AgentGeminiCLI), string(v1alpha1.AgentOpenCode), string(v1alpha1.AgentQwenCode)}
}

// setQuantity sets the size of the volume, or both request and limit of a resource.
func setQuantity(v *v1alpha1.ForkVariant, key, value string) error {
	q, err := resource.ParseQuantity(value)
	if err != nil {
		return fmt.Errorf("%s is %q; it must be a quantity such as 2 or 4Gi", key, value)
	}
	if q.Sign() < 0 || key == "size" && q.IsZero() {
		return fmt.Errorf("%s is %q; it must be more than 0", key, value)
	}
	if key == "size" {
		workspaceOf(v).Size = &q
		return nil
	}
	t := templateOf(v)
	if t.Resources == nil {
		t.Resources = &v1alpha1.VariantResources{Limits: corev1.ResourceList{}, Requests: corev1.ResourceList{}}
	}
	t.Resources.Limits[corev1.ResourceName(key)], t.Resources.Requests[corev1.ResourceName(key)] = q, q
	return nil
}

func agentOf(v *v1alpha1.ForkVariant) *v1alpha1.VariantAgent {
	if v.Agent == nil {
		v.Agent = &v1alpha1.VariantAgent{}
	}
	return v.Agent
}

func templateOf(v *v1alpha1.ForkVariant) *v1alpha1.VariantTemplate {
	if v.Template == nil {
		v.Template = &v1alpha1.VariantTemplate{}
	}
	return v.Template
}

func workspaceOf(v *v1alpha1.ForkVariant) *v1alpha1.VariantWorkspace {
	if v.Workspace == nil {
		v.Workspace = &v1alpha1.VariantWorkspace{}
	}
	return v.Workspace
}
