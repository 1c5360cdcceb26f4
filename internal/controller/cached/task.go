package cached

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// given stands for a text of which a decision depends on no more than that there is one.
const given = "…"

// task drops what the pods of a task are made of, and texts.
func task(t *v1alpha1.Task) {
	trim(&t.ObjectMeta)
	s := &t.Spec
	s.Template, s.Prompt, s.CheckpointPolicy.BeforeRiskyTools = corev1.PodTemplateSpec{}, nil, nil
	if s.Children != nil {
		s.Children.Template = nil
	}
	if s.Rewind != nil {
		s.Rewind.Paths = nil
	}
	if r := s.Resume; r != nil {
		for _, text := range []*string{&r.Prompt, &r.AdditionalContext} {
			if *text != "" {
				*text = given
			}
		}
	}
}

// fork drops all of a Fork but what says for whom it waits: one that is not complete is read from the API
// server.
func fork(f *v1alpha1.Fork) {
	trim(&f.ObjectMeta)
	spec := v1alpha1.ForkSpec{SourceRef: f.Spec.SourceRef, CheckpointRef: f.Spec.CheckpointRef, At: f.Spec.At}
	for _, v := range f.Spec.Variants {
		spec.Variants = append(spec.Variants, v1alpha1.ForkVariant{Name: v.Name})
	}
	f.Spec = spec
	f.Status = v1alpha1.ForkStatus{ObservedGeneration: f.Status.ObservedGeneration, Conditions: f.Status.Conditions, Source: f.Status.Source}
}

// snapshot drops metadata only: the rest is small.
func snapshot(s *v1alpha1.ConversationSnapshot) { trim(&s.ObjectMeta) }
