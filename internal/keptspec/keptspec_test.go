package keptspec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestASpecIsKeptAsItWas(t *testing.T) {
	spec := builders.Task("work").Spec
	spec.Prompt = ptr.To("The password is in the vault: password=hunter22.")
	spec.Template.Spec.Containers[0].Image = "registry.example.com/agent@sha256:" + strings.Repeat("0a", 32)
	spec.Template.Spec.Containers[0].Args = []string{"--model", "claude-sonnet-4-5-20250929", "/usr/local/lib/python3.11/site-packages"}
	spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "MODE", Value: "fast"}, {Name: "MAX_OUTPUT_TOKENS", Value: "64000"}, {Name: "AUTHOR", Value: "Ada Lovelace"},
		{Name: "API_KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "api-key", LocalObjectReference: corev1.LocalObjectReference{Name: "model-credentials"}}}},
		{Name: "SHORT_KEY", Value: "on"}, {Name: "EMPTY_TOKEN"},
	}
	kept, err := Of(&spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept.Variables)+len(kept.Fields) > 0 {
		t.Errorf("left out: %q, %q; want nothing", kept.Variables, kept.Fields)
	}
	read, err := Read(kept)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&spec, read); diff != "" {
		t.Errorf("what is read differs from what was kept (-want +got):\n%s", diff)
	}
}

func TestWhatAForkDoesNotInheritIsNotKept(t *testing.T) {
	spec := builders.Task("work", builders.StartFrom("source", ""), builders.Rewind("r", "work-1")).Spec
	spec.Publish = &v1alpha1.Publish{Branch: "main"}
	kept, err := Of(&spec)
	if err != nil {
		t.Fatal(err)
	}
	read, err := Read(kept)
	if err != nil {
		t.Fatal(err)
	}
	if read.StartFrom != nil || read.Rewind != nil || read.Publish != nil {
		t.Errorf("kept startFrom %v, rewind %v, publish %v; want none", read.StartFrom, read.Rewind, read.Publish)
	}
}

func TestNothingThatLooksSecretIsKept(t *testing.T) {
	const secret = "hunter2-hunter2"
	agent := func(change func(*corev1.Container)) func(*v1alpha1.TaskSpec) {
		return func(s *v1alpha1.TaskSpec) { change(&s.Template.Spec.Containers[0]) }
	}
	variable := func(name, value string) func(*v1alpha1.TaskSpec) {
		return agent(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "MODE", Value: "fast"}, {Name: name, Value: value}}
		})
	}
	for name, test := range map[string]struct {
		change            func(*v1alpha1.TaskSpec)
		variables, fields []string
	}{
		"a token by its name":        {variable("GITHUB_TOKEN", secret), []string{"GITHUB_TOKEN"}, nil},
		"a password by its name":     {variable("PGPASSWORD", secret), []string{"PGPASSWORD"}, nil},
		"a key by its name":          {variable("ANTHROPIC_API_KEY", secret), []string{"ANTHROPIC_API_KEY"}, nil},
		"a key without a word break": {variable("SSHKEY", secret), []string{"SSHKEY"}, nil},
		"a password in a URL":        {variable("DATABASE", "postgres://app:"+secret+"@db/app"), []string{"DATABASE"}, nil},
		"a password in a text":       {variable("CONNECTION", "Server=db;Password="+secret), []string{"CONNECTION"}, nil},
		"a private key":              {variable("PEM", "-----BEGIN OPENSSH PRIVATE KEY-----\n"+secret), []string{"PEM"}, nil},
		"a token of a service":       {variable("GH", "ghp_hunter2hunter2"), []string{"GH"}, nil},
		"a random value":             {variable("X", "9f86d081884c7d659a2f"), []string{"X"}, nil},
		"another container's": {func(s *v1alpha1.TaskSpec) {
			s.Template.Spec.InitContainers = []corev1.Container{{Name: "setup", Env: []corev1.EnvVar{{Name: "TOKEN", Value: secret}}}}
		}, nil, []string{"spec.template.spec.initContainers[0].env[0].value"}},
		"an option's value":      {agent(func(c *corev1.Container) { c.Args = []string{"--token", secret} }), nil, []string{"spec.template.spec.containers[0].args[1]"}},
		"an option with a value": {agent(func(c *corev1.Container) { c.Args = []string{"--api-key=" + secret} }), nil, []string{"spec.template.spec.containers[0].args[0]"}},
		"a secret in a script":   {agent(func(c *corev1.Container) { c.Command = []string{"sh", "-c", "export TOKEN=" + secret} }), nil, []string{"spec.template.spec.containers[0].command[2]"}},
		"a secret in annotations": {func(s *v1alpha1.TaskSpec) {
			s.Template.Annotations = map[string]string{"login": "https://u:" + secret + "@host"}
		}, nil, []string{"spec.template.metadata.annotations.login"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := builders.Task("work").Spec
			test.change(&spec)
			before := spec.DeepCopy()
			kept, err := Of(&spec)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(kept.Spec, "hunter2") || strings.Contains(kept.Spec, "9f86d") {
				t.Errorf("the secret is kept: %s", kept.Spec)
			}
			if diff := cmp.Diff([][]string{test.variables, test.fields}, [][]string{kept.Variables, kept.Fields}); diff != "" {
				t.Errorf("what is named as left out (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, &spec); diff != "" {
				t.Errorf("the spec itself was changed:\n%s", diff)
			}
		})
	}
}

func TestASpecThatIsTooLargeIsNotKept(t *testing.T) {
	spec := builders.Task("work").Spec
	spec.Template.Spec.Containers[0].Args = []string{strings.Repeat("word ", MaxBytes/5)}
	kept, err := Of(&spec)
	if err != nil || kept.Spec != "" || len(kept.Fields)+len(kept.Variables) > 0 {
		t.Errorf("%d bytes are kept, without %q and %q: %v", len(kept.Spec), kept.Fields, kept.Variables, err)
	}
}

func TestWhatIsLeftOutIsNamedWithoutNUL(t *testing.T) {
	spec := builders.Task("work").Spec
	spec.Template.Annotations = map[string]string{"a\x00b": "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"}
	kept, err := Of(&spec)
	if err != nil || len(kept.Fields) != 1 || strings.Contains(kept.Fields[0], "\x00") {
		t.Errorf("left out: %q, %v", kept.Fields, err)
	}
}
