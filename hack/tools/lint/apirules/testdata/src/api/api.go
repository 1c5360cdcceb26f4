// Package api is an API.
//
// +groupName=example.dev
package api

import "meta"

// Mode is bounded by its enum.
// +kubebuilder:validation:Enum=A;B
type Mode string

type WidgetSpec struct {
	// name of the widget.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// mode of the widget.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// sizeBytes of it.
	// +optional
	SizeBytes *int64 `json:"sizeBytes,omitempty"`
	// parts of it.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Parts []Part `json:"parts,omitempty"`

	Untagged string // want `WidgetSpec.Untagged: needs a JSON tag in lower camel case`
	// Cased wrongly.
	// +optional
	Cased int32 `json:"Cased"` // want `needs a JSON tag in lower camel case`
	// The free text.
	// +optional
	Free string `json:"free,omitempty"` // want `begin the comment with the field's name in JSON, free` `give the string a maximum`
	// phase it is in.
	// +optional
	// +kubebuilder:validation:MaxLength=8
	Phase string `json:"phase,omitempty"` // want `say what happens with conditions`
	// on or off.
	// +optional
	On *bool `json:"on,omitempty"` // want `use an enum`
	// ratio of it.
	// +optional
	Ratio float64 `json:"ratio,omitempty"` // want `use an integer of a smaller unit`
	// count of it.
	Count int `json:"count,omitempty"` // want `use int32 or int64` `say whether it is`
	// both of them.
	// +optional
	// +required
	Both int32 `json:"both,omitempty"` // want `is both`
	// delay before it starts.
	// +optional
	Delay meta.Duration `json:"delay,omitempty"` // want `give a number with its unit in the name`
	// words about it.
	// +optional
	Words []string `json:"words,omitempty"` // want `say how server-side apply merges it` `give the list a maximum` `give the strings a maximum`
	// keyed list.
	// +optional
	// +listType=map
	// +kubebuilder:validation:MaxItems=8
	Keyed []Part `json:"keyed,omitempty"` // want `needs \+listMapKey`
}

// Part is written by users too.
type Part struct {
	// name of the part.
	// +required
	Name string `json:"name"` // want `Part.Name: give the string a maximum`
}

type WidgetStatus struct {
	// message needs no maximum: a controller writes it.
	// +optional
	Message string `json:"message,omitempty"`
	// conditions of it.
	// +optional
	// +listType=atomic
	Conditions []meta.Condition `json:"conditions,omitempty"` // want `conditions are a list of type map`
}

type WidgetList struct {
	Items []WidgetSpec `json:"items"`
}
