package keptspec

import (
	"reflect"
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
		{Name: "OPENAI_BASE_URL", Value: "https://models.example.com:8443/compatible-mode/v1"}, {Name: "AUTH_TYPE", Value: "openai"},
		{Name: "GOOGLE_APPLICATION_CREDENTIALS", Value: "/var/run/secrets/google/credentials.json"}, {Name: "NODE_OPTIONS", Value: "--max-old-space-size=4096"},
		{Name: "NO_PROXY", Value: ".svc,10.96.0.0/12,localhost"}, {Name: "GIT_AUTHOR_EMAIL", Value: "ada@example.com"}, {Name: "LANG", Value: "en_US.UTF-8"},
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
		"a UUID":                     {variable("X", "8b0f8f5e-9f86-4d08-9188-4c7d659a2f00"), []string{"X"}, nil},
		"one with slashes":           {variable("X", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), []string{"X"}, nil},
		"another container's": {func(s *v1alpha1.TaskSpec) {
			s.Template.Spec.InitContainers = []corev1.Container{{Name: "setup", Env: []corev1.EnvVar{{Name: "TOKEN", Value: secret}}}}
		}, nil, []string{"spec.template.spec.initContainers[0].env[0].value"}},
		"an option's value":      {agent(func(c *corev1.Container) { c.Args = []string{"--token", secret} }), nil, []string{"spec.template.spec.containers[0].args[1]"}},
		"an option with a value": {agent(func(c *corev1.Container) { c.Args = []string{"--api-key=" + secret} }), nil, []string{"spec.template.spec.containers[0].args[0]"}},
		"a secret in a script":   {agent(func(c *corev1.Container) { c.Command = []string{"sh", "-c", "export TOKEN=" + secret} }), nil, []string{"spec.template.spec.containers[0].command[2]"}},
		"a secret in annotations": {func(s *v1alpha1.TaskSpec) {
			s.Template.Annotations = map[string]string{"login": "https://u:" + secret + "@host"}
		}, nil, []string{"spec.template.metadata.annotations.login"}},
		"a secret by the key of an annotation": {func(s *v1alpha1.TaskSpec) {
			s.Template.Annotations = map[string]string{"vault/token": secret}
		}, nil, []string{"spec.template.metadata.annotations.vault/token"}},
		"a secret as the key of an annotation": {func(s *v1alpha1.TaskSpec) {
			s.Template.Annotations = map[string]string{"ghp_hunter2hunter2": "on"}
		}, nil, []string{"spec.template.metadata.annotations"}},
		"an attribute of a volume": {func(s *v1alpha1.TaskSpec) {
			s.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: "files.example.com", VolumeAttributes: map[string]string{"share": "home", "password": secret}}}}}
		}, nil, []string{"spec.template.spec.volumes[0].csi.volumeAttributes.password"}},
		"a header of a probe": {agent(func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "Bearer " + secret}}}}}
		}), nil, []string{"spec.template.spec.containers[0].readinessProbe.httpGet.httpHeaders[0].value"}},
		"a secret of the children": {func(s *v1alpha1.TaskSpec) {
			s.Children = &v1alpha1.Children{OnDelete: v1alpha1.ChildrenOrphan, Template: &v1alpha1.ChildTemplate{Container: &v1alpha1.ChildContainer{
				Args: []string{"--fast"}, Env: []corev1.EnvVar{{Name: "MODE", Value: "fast"}, {Name: "TOKEN", Value: secret}},
			}}}
		}, nil, []string{"spec.children.template.container.env[1].value"}},
		"a query of the repository's URL": {func(s *v1alpha1.TaskSpec) {
			s.Repository.URL += "?private=" + secret
		}, nil, []string{"spec.repository.url"}},
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

// TestNoNULIsKept: Postgres stores none.
func TestNoNULIsKept(t *testing.T) {
	spec := builders.Task("work").Spec
	spec.Template.Annotations = map[string]string{"a\x00b": "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"}
	spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN\x00", Value: "hunter2-hunter2"}}
	kept, err := Of(&spec)
	if err != nil || strings.Contains(strings.Join(append(kept.Fields, kept.Variables...), ""), "\x00") {
		t.Errorf("left out: %q, %q, %v", kept.Fields, kept.Variables, err)
	}
	if want := []string{"spec.template.metadata.annotations", "spec.template.spec.containers[0].env[0].value", "spec.template.spec.containers[0].env[0].name"}; !cmp.Equal(want, kept.Fields) {
		t.Errorf("left out: %q, want %q", kept.Fields, want)
	}
}

// TestEveryFieldIsInheritedOrNot: a new field of a spec has to be judged.
func TestEveryFieldIsInheritedOrNot(t *testing.T) {
	not := map[string]bool{"StartFrom": true, "Adopt": true, "Resume": true, "Rewind": true, "Publish": true, "Acknowledge": true, "RequestedBy": true}
	spec := &v1alpha1.TaskSpec{}
	fields := reflect.ValueOf(spec).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
		} else if f.Kind() == reflect.String {
			f.SetString("x")
		}
	}
	kept := reflect.ValueOf(inherited(spec)).Elem()
	for i := range fields.NumField() {
		field, same := fields.Type().Field(i).Name, reflect.DeepEqual(fields.Field(i).Interface(), kept.Field(i).Interface())
		if same == not[field] {
			t.Errorf("%s: inherited %t", field, same)
		}
	}
}

// Every byte is looked at a bounded number of times: otherwise this would take minutes, and the
// manager with it.
func TestLongTextsOfNamesAndValuesTakeNoTime(t *testing.T) {
	for _, text := range []string{"a:", "a=a:", "a ", "-a ", "a:\"", "://a", "bearer $", "aA"} {
		Harmless("", strings.Repeat(text, MaxBytes/len(text)))
		harmlessWord("", strings.Repeat(text, MaxBytes/len(text)))
	}
}
